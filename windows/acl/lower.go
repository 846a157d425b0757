// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// Lowering is the desired HNS objects for a State.
type Lowering struct {
	Ruleset
	// Unsupported lists what is denied although the State allows it.
	Unsupported []model.Unsupported

	index  *index
	tables map[model.TableID]*[2]layout
}

// Lower computes the ACLs of every endpoint of a State. Endpoints whose table the State lacks are denied
// all traffic. platform is the HNS version in Unsupported.
func Lower(s *model.State, o Options, platform string) *Lowering {
	return lower(s, o, platform, nil)
}

// lower reuses layouts from a memory, if there is one.
func lower(s *model.State, o Options, platform string, m *memory) *Lowering {
	l := &Lowering{index: newIndex(s, o), tables: make(map[model.TableID]*[2]layout)}
	l.Lists = make(map[model.EndpointID][]hns.ACL, len(s.Policy.Endpoints))
	l.Sets = make(map[string][]netip.Addr)
	for _, e := range s.Policy.Endpoints {
		if t := s.Policy.Tables[e.Table]; t != nil && l.tables[e.Table] == nil {
			l.tables[e.Table] = &[2]layout{l.index.lowerSide(t, model.Ingress, m), l.index.lowerSide(t, model.Egress, m)}
		}
	}
	w := &writer{Lowering: l, hashes: make(map[slot]string)}
	w.nameSets()
	lists := make(map[model.TableID][]hns.ACL, len(l.tables))
	dropped := make(map[model.TableID][]*model.Cause)
	for id := range l.tables {
		lists[id], dropped[id] = w.list(id)
	}
	for _, id := range slices.Sorted(maps.Keys(s.Policy.Endpoints)) {
		e := s.Policy.Endpoints[id]
		l.Lists[id] = lists[e.Table]
		if l.Lists[id] == nil {
			l.Lists[id] = DenyAll()
		}
		l.report(e, dropped[e.Table], platform)
	}
	return l
}

// report reports what an endpoint is denied for lack of room or of IPv6.
func (l *Lowering) report(e model.EndpointState, dropped []*model.Cause, platform string) {
	add := func(u model.Unsupported) {
		u.OS, u.Platform, u.Effect = model.Windows, platform, model.OverBlocks
		if !slices.Contains(l.Unsupported, u) {
			l.Unsupported = append(l.Unsupported, u)
		}
	}
	pod := model.Origin{Kind: "Pod", Namespace: e.Pod.Namespace, Name: e.Pod.Name}
	for _, c := range dropped {
		u := model.Unsupported{Policy: pod, Rule: -1, Construct: "rules per endpoint",
			Reason: fmt.Sprintf("more than %d ACLs for one endpoint; traffic of the remaining rules is denied", l.index.options.MaxRules)}
		if c != nil {
			u.Direction = c.Direction
			if c.Reason == model.ReasonRule {
				u.Policy, u.Rule = c.Origin, c.Rule
			}
		}
		add(u)
	}
	if l.index.options.NoIPv6 && slices.ContainsFunc(e.IPs, netip.Addr.Is6) {
		add(model.Unsupported{Policy: pod, Rule: -1, Construct: "IPv6", Reason: "this HNS has no IPv6 ACLs; IPv6 may be denied where policies allow it"})
	}
}

// slot identifies the rule of a table that a set belongs to.
type slot struct {
	table model.TableID
	d     model.Direction
	rule  int
}

// writer converts rules to ACLs and sets.
type writer struct {
	*Lowering
	hashes map[slot]string
}

// nameSets gives every rule with single addresses the name of its set.
//
// A name is derived from the content of the rule and from the policy rules behind it, not from its members.
// Pods may come and go, and policies be edited, while lists keep referring to it. Tables with the same name
// and members share the set. If the members differ, each table has its own set.
func (w *writer) nameSets() {
	if !w.index.options.Sets {
		return
	}
	shared := make(map[string][]slot)
	for id, t := range w.tables {
		for d := range t {
			for i, r := range t[d].rules {
				if len(r.who.addrGroups) > 0 && !r.node {
					s := slot{id, model.Direction(d), i}
					key := w.key(s)
					w.hashes[s] = hash(key)
					shared[w.hashes[s]] = append(shared[w.hashes[s]], s)
				}
			}
		}
	}
	for name, slots := range shared {
		if w.sameMembers(slots) {
			continue
		}
		for _, s := range slots {
			w.hashes[s] = hash(name + s.table.String())
		}
	}
}

func (w *writer) rule(s slot) *rule { return &w.tables[s.table][s.d].rules[s.rule] }

func (w *writer) sameMembers(slots []slot) bool {
	first := w.rule(slots[0]).who.addrGroups
	return !slices.ContainsFunc(slots[1:], func(s slot) bool { return !slices.Equal(w.rule(s).who.addrGroups, first) })
}

// key returns the text that a set's name is derived from.
func (w *writer) key(s slot) string {
	r := w.rule(s)
	parts := []string{s.d.String(), r.verdict.String(), protocolText(r.protocols), portText(r.ports), fmt.Sprint(r.who.family)}
	for _, c := range w.causes(s) {
		parts = append(parts, fmt.Sprintf("%s %s %d", c.Origin, c.Direction, c.Rule))
	}
	slices.Sort(parts[5:])
	return strings.Join(slices.Compact(parts), "\n")
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// causes returns the policy rules behind a rule; without any it returns the causes of other kinds.
func (w *writer) causes(s slot) []*model.Cause {
	r := w.rule(s)
	side := &w.index.state.Policy.Tables[s.table].Sides[s.d]
	seen := make(map[*model.Cause]bool)
	rows := make(map[*model.Row]bool)
	for _, class := range w.classes(r) {
		row := side.Row(class)
		if row == nil || rows[row] {
			continue
		}
		rows[row] = true
		for i, cell := range w.index.cells {
			if r.cells.has(i) {
				if c := row.Cell(cell.class); c.Verdict == r.verdict && c.Cause != nil {
					seen[c.Cause] = true
				}
			}
		}
	}
	var rules, others []*model.Cause
	for c := range seen {
		if c.Reason == model.ReasonRule {
			rules = append(rules, c)
		} else {
			others = append(others, c)
		}
	}
	if len(rules) == 0 {
		rules = others
	}
	slices.SortFunc(rules, func(a, b *model.Cause) int { return strings.Compare(a.String(), b.String()) })
	return rules
}

// classes lists the classes of a rule's members.
func (w *writer) classes(r *rule) []model.PeerClass {
	f := &w.index.families[r.who.family]
	if r.who.anyone {
		return []model.PeerClass{w.index.families[0].prefixes[0].class, w.index.families[1].prefixes[0].class}
	}
	var classes []model.PeerClass
	for _, c := range r.who.addrGroups {
		classes = append(classes, f.addrGroups[c].class)
	}
	for _, p := range r.who.prefixes {
		classes = append(classes, f.prefixes[p].class)
	}
	return classes
}
