// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// Decider is what the ACLs with one Id decide in a list. Parts of a rule share an Id.
type Decider struct {
	Direction model.Direction
	Verdict   model.Verdict
	// Decisions are those of the State for the packets that these ACLs decide, each once. It is empty if earlier
	// ACLs decide them all.
	Decisions []model.Decision
	// Differs is true if the ACLs give some packets another verdict than the State.
	Differs bool
}

// errReadings is the error for a list whose verdicts depend on how HNS reads it.
var errReadings = errors.New("the list is not one that Lower writes: what each ACL decides is not certain")

// Deciders returns what each ACL of an endpoint decides under a State, by Id. It is exhaustive, as Check is. Host
// rules are not in it. The result is the same for all endpoints with this table and list.
func Deciders(s *model.State, id model.EndpointID, o Options, p *Ruleset) (map[string]*Decider, error) {
	list := p.Lists[id]
	if !WellFormed(list) {
		return nil, errReadings
	}
	rules, err := p.Rules(id)
	if err != nil {
		return nil, err
	}
	c := newChecker(newIndex(s, o))
	remotes, err := c.addressCuts(list, p.Sets)
	if err != nil {
		return nil, err
	}
	remotes = slices.DeleteFunc(remotes, func(a netip.Addr) bool { return slices.Contains(placeholder[:], a) })
	slices.SortFunc(remotes, netip.Addr.Compare)
	found := deciders{checker: c, all: make(map[string]*Decider), ports: c.portCuts(list), table: s.Policy.Tables[s.Policy.Endpoints[id].Table]}
	for _, a := range list {
		if a.Normal().RuleType != hns.Switch {
			continue
		}
		d := &Decider{}
		if a.Direction == hns.Out {
			d.Direction = model.Egress
		}
		if a.Action == hns.Allow {
			d.Verdict = model.Allow
		}
		if was := found.all[a.ID]; was == nil {
			found.all[a.ID] = d
		} else if was.Direction != d.Direction || was.Verdict != d.Verdict {
			return nil, errReadings
		}
	}
	for _, d := range model.Directions {
		found.side(d, rules, remotes)
	}
	return found.all, nil
}

// deciders collects what ACLs decide.
type deciders struct {
	*checker
	all   map[string]*Decider
	ports []portCut
	table *model.Table
}

// side adds the decisions of one direction.
func (f *deciders) side(d model.Direction, rules *hns.Rules, remotes []netip.Addr) {
	type pair struct {
		part int
		row  *model.Row
	}
	done := make(map[pair]bool)
	parts, of := rules.Parts(PacketDirection(d), netip.Addr{}, remotes, hns.Reading{})
	for i, remote := range remotes {
		row := f.row(d, remote)
		if key := (pair{of[i], row}); !done[key] {
			done[key] = true
			f.part(parts[of[i]], row)
		}
	}
}

// part adds the decisions about addresses that the same ACLs and the same row match.
func (f *deciders) part(part hns.Part, row *model.Row) {
	for _, at := range f.ports {
		by := f.all[part.Decide(uint8(at.protocol), at.port, 0).ID]
		if by == nil {
			continue // no ACL of the list decides: WellFormed excludes it
		}
		want := row.Cell(f.state.Policy.PortClass(at.protocol, at.port))
		by.Differs = by.Differs || want.Verdict != by.Verdict
		if !slices.ContainsFunc(by.Decisions, func(o model.Decision) bool { return sameDecision(o, want) }) {
			by.Decisions = append(by.Decisions, want)
		}
	}
}

var (
	byNode  = &model.Row{Cells: []model.Decision{{Verdict: model.Allow, Cause: &model.Cause{Reason: model.ReasonNode}}}}
	pending = &model.Row{Cells: []model.Decision{{Cause: &model.Cause{Reason: model.ReasonPending}}}}
)

// row returns what the State decides about an address.
func (f *deciders) row(d model.Direction, remote netip.Addr) *model.Row {
	switch {
	case f.table == nil:
		return pending
	case f.admitsNode(d, remote):
		return byNode
	}
	if r := f.table.Sides[d].Row(f.class(remote)); r != nil {
		return r
	}
	return pending
}

// sameDecision reports whether two decisions are of one rule, or of one cause of another kind.
func sameDecision(a, b model.Decision) bool {
	return a.Verdict == b.Verdict && (a.Cause == b.Cause || a.Cause != nil && b.Cause != nil && *a.Cause == *b.Cause)
}
