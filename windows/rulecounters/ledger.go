// SPDX-License-Identifier: Apache-2.0

package rulecounters

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// counterKey identifies a counter of a port. Parts of a rule of policy have one ACL id, and priorities of their own.
type counterKey struct {
	acl      string
	group    string
	priority uint32
}

// counters are those of a port.
type counters map[counterKey]uint64

// deciders are what ACLs stand for, by Id: one set for each State of an interval.
type deciders []map[string]*acl.Decider

// reading is the last reading of an endpoint.
type reading struct {
	guid     string
	mark     uint64 // the step of the journal before it
	counters counters
	// deciders are those of the interval, or the present ones if nothing was assigned to rules.
	deciders deciders
}

// byACL returns the counters of the ACLs of a list. It is an error if the rules name none of them.
func byACL(rules []Rule, list []hns.ACL) (counters, error) {
	ours := make(map[string]bool)
	for _, a := range list {
		if a.Normal().RuleType == hns.Switch {
			ours[a.ID] = true
		}
	}
	found := make(counters)
	for _, r := range rules {
		id := r.ID
		if !ours[id] {
			id = r.Name
		}
		if ours[id] {
			found[counterKey{id, r.Group, r.Priority}] += r.Matched
		}
	}
	if len(found) == 0 && len(ours) > 0 {
		return nil, fmt.Errorf("none of %d rules has the id of an ACL of the agent", len(rules))
	}
	return found, nil
}

// more returns what was counted between two readings of a counter. A counter that is lower now has begun again. A
// new one has an unknown beginning.
func more(key counterKey, was, now counters) uint64 {
	before, ok := was[key]
	switch {
	case !ok:
		return 0
	case now[key] < before:
		return now[key]
	}
	return now[key] - before
}

// causeKey identifies a rule of policy by what it says, or a cause of another kind.
type causeKey struct {
	verdict   model.Verdict
	reason    model.Reason
	origin    model.Origin
	direction model.Direction
	tier      model.Tier
	rule      int // if the meaning is not known
	meaning   uint64
}

func keyOf(d model.Decision) causeKey {
	k := causeKey{verdict: d.Verdict, reason: d.Cause.Reason, origin: d.Cause.Origin, direction: d.Cause.Direction, tier: d.Cause.Tier, meaning: d.Cause.Meaning}
	if k.meaning == 0 {
		k.rule = d.Cause.Rule
	}
	return k
}

// maxSums bounds the kept sums of rules that decide nothing any more.
const maxSums = 8192

// ledger adds up packets.
type ledger struct {
	sums   map[causeKey]uint64
	others [2][2]uint64
	// past counts packets of sums that were removed.
	past [2][2]uint64
}

func newLedger() ledger { return ledger{sums: make(map[causeKey]uint64)} }

// single returns the decision that an ACL has stood for under all States of an interval; ok is false if there are
// several.
func (d deciders) single(id string) (one model.Decision, ok bool) {
	for _, byID := range d {
		by := byID[id]
		if by == nil || by.Differs || len(by.Decisions) > 1 {
			return model.Decision{}, false
		}
		if len(by.Decisions) == 0 {
			continue
		}
		if next := by.Decisions[0]; next.Cause == nil || one.Cause != nil && keyOf(one) != keyOf(next) {
			return model.Decision{}, false
		} else if one.Cause == nil {
			one = next
		}
	}
	return one, one.Cause != nil
}

// add assigns what was counted to the rules that the ACLs stand for.
func (l *ledger) add(d deciders, list []hns.ACL, was, now counters) {
	rest := make(counters)
	for key := range now {
		if one, ok := d.single(key.acl); ok {
			l.sums[keyOf(one)] += more(key, was, now)
		} else {
			rest[key] = now[key]
		}
	}
	l.unassigned(list, was, rest)
}

// unassigned counts packets that cannot be assigned to rules.
func (l *ledger) unassigned(list []hns.ACL, was, now counters) {
	done := make(map[string]bool) // several ACLs may have the id
	for _, a := range list {
		if done[a.ID] {
			continue
		}
		done[a.ID] = true
		d, v := model.Ingress, model.Deny
		if a.Direction == hns.Out {
			d = model.Egress
		}
		if a.Action == hns.Allow {
			v = model.Allow
		}
		for key := range now {
			if key.acl == a.ID {
				l.others[d][v] += more(key, was, now)
			}
		}
	}
}

// counts returns the sums by what the ACLs of all endpoints stand for at present.
func (l *ledger) counts(current map[model.EndpointID]*reading) dataplane.CauseCounts {
	c := dataplane.CauseCounts{Packets: true, Others: l.others, Past: l.past}
	seen, shared := make(map[causeKey]bool), make(map[causeKey]bool)
	for _, r := range current {
		if len(r.deciders) == 0 {
			continue
		}
		counted := make(map[string]bool)
		for key := range r.counters {
			counted[key.acl] = true
		}
		for id, by := range r.deciders[0] { // the newest State
			one, ok := r.deciders.single(id)
			if ok && counted[id] {
				if !seen[keyOf(one)] {
					c.Causes = append(c.Causes, dataplane.CauseCount{Decision: one, Flows: l.sums[keyOf(one)]})
				}
				seen[keyOf(one)] = true
				continue
			}
			for _, o := range by.Decisions {
				if o.Cause != nil && !shared[keyOf(o)] {
					shared[keyOf(o)] = true
					c.Shared = append(c.Shared, o)
				}
			}
		}
	}
	l.retire(&c, seen)
	slices.SortFunc(c.Shared, func(a, b model.Decision) int { return cmp.Compare(a.Cause.String(), b.Cause.String()) })
	return c
}

// retire adds the sums that nothing stands for any more to the past, and forgets them if they are too many.
func (l *ledger) retire(c *dataplane.CauseCounts, seen map[causeKey]bool) {
	gone := 0
	for key, n := range l.sums {
		if !seen[key] {
			c.Past[key.direction][key.verdict] += n
			gone++
		}
	}
	if gone > maxSums {
		l.past = c.Past
		maps.DeleteFunc(l.sums, func(key causeKey, _ uint64) bool { return !seen[key] })
	}
}

// cacheKey identifies deciders: a State, a table of it, and a list with its sets.
type cacheKey struct {
	state *model.State
	table model.TableID
	list  [sha256.Size]byte
}

// decidersOf returns the deciders of an endpoint under States. The newest is first. A list that cannot be explained
// has none.
func (s *Sampler) decidersOf(id model.EndpointID, states []*model.State, in *Installed, used map[cacheKey]map[string]*acl.Decider) deciders {
	list := sha256.Sum256(fmt.Appendf(nil, "%v\n%v\n%v", in.List, setsOf(in), in.Options))
	var all deciders
	for _, state := range states {
		key := cacheKey{state, state.Policy.Endpoints[id].Table, list}
		by, ok := used[key]
		if !ok {
			by, ok = s.cache[key]
		}
		if !ok {
			var err error
			if by, err = acl.Deciders(state, id, in.Options, &acl.Ruleset{Lists: map[model.EndpointID][]hns.ACL{id: in.List}, Sets: in.Sets}); err != nil {
				s.config.Log.Debug("packets of a pod are not counted by rule", "endpoint", id, "error", err)
				by = nil
			}
		}
		used[key] = by
		all = append(all, by)
	}
	return all
}

// setsOf returns the sets that a list refers to, in an order that is always the same.
func setsOf(in *Installed) (text []string) {
	for name, members := range in.Sets {
		if acl.RefersTo(in.List, name) {
			text = append(text, fmt.Sprint(name, members))
		}
	}
	slices.Sort(text)
	return text
}
