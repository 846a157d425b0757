// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// Action is the action of a Step.
type Action uint8

// The actions. Each is one call to HNS.
const (
	// AddMembers writes a set with new members besides the current ones, or creates the set.
	AddMembers Action = iota
	// WriteList replaces the ACLs of an endpoint.
	WriteList
	// RemoveMembers writes a set without its obsolete members.
	RemoveMembers
	// RemoveSet removes a set that no list refers to.
	RemoveSet
	// Confirm reads whether HNS shows the lists that were written.
	Confirm
)

// String returns a word for logs.
func (a Action) String() string {
	return [...]string{"add members", "write list", "remove members", "remove set", "confirm lists"}[a]
}

// Step is one write of a Plan.
type Step struct {
	Action Action
	// Set and Members are the set and all its members afterwards.
	Set     string
	Members []netip.Addr
	// Make is true if the set does not exist yet.
	Make bool
	// Endpoint and List are for WriteList.
	Endpoint model.EndpointID
	List     []hns.ACL
	// Needs are earlier steps whose failure prevents this one.
	Needs []int
	// Waits are earlier steps whose failure prevents this one unless it only denies.
	Waits []int
	// Tightens is true if the step only denies.
	Tightens bool
}

// Plan leads HNS from one Ruleset to another so that every packet meets the old verdict or the new one.
//
// A member is added to its new set before it leaves its old one. A list is written when the sets that it
// newly refers to are complete. It is written before visible changes to the sets that it no longer refers
// to. If no order satisfies all that, a set is recreated under another name. No order relies on the time at which packets
// meet a set, and what an old list must not meet is written after its successor is confirmed: see late.go.
type Plan struct {
	Steps []Step
	// Target is the Ruleset in force at the end.
	Target *Ruleset
}

// NewPlan orders the writes. It leaves alone endpoints that only from has, and the sets that they refer to.
func NewPlan(from, to *Ruleset) *Plan {
	p := &planner{from: from, to: to, renamed: make(map[string]string)}
	for {
		if flips := p.collect(); p.inlineLate(flips) {
			continue
		}
		if stuck := p.order(); stuck == "" {
			break
		} else {
			p.rename(stuck)
		}
	}
	return &Plan{Steps: p.steps, Target: p.to}
}

type planner struct {
	from, to *Ruleset
	// before lists, for each step of writes, the steps that must precede it.
	writes []Step
	before []map[int]bool
	// settle lists, for each step, those of before that must be confirmed.
	settle []map[int]bool
	add    map[string]int // index of the step by set
	trim   map[string]int
	steps  []Step
	// renamed are the original names of sets that rename has made.
	renamed map[string]string
}

// collect adds all steps and their dependencies.
func (p *planner) collect() (flips map[model.EndpointID]int) {
	p.writes, p.before, p.settle = nil, nil, nil
	p.add, p.trim = make(map[string]int), make(map[string]int)
	allows := p.verdicts()
	for _, set := range slices.Sorted(maps.Keys(p.to.Sets)) {
		have, exists := p.from.Sets[set]
		want := p.to.Sets[set]
		all := union(have, want)
		if !exists || len(all) > len(have) {
			p.add[set] = p.write(Step{Action: AddMembers, Set: set, Members: all, Make: !exists, Tightens: !allows[set]})
		}
		if len(all) > len(want) {
			p.trim[set] = p.write(Step{Action: RemoveMembers, Set: set, Members: want, Tightens: allows[set]})
		}
	}
	flips = make(map[model.EndpointID]int)
	for _, id := range slices.Sorted(maps.Keys(p.to.Lists)) {
		if !Equal(p.from.Lists[id], p.to.Lists[id]) {
			flips[id] = p.write(Step{Action: WriteList, Endpoint: id, List: p.to.Lists[id]})
		}
	}
	for id := range p.to.Lists {
		p.relate(id, flips)
	}
	p.removeSets(flips)
	return flips
}

// removeSets adds the removal of our sets that no list will refer to.
func (p *planner) removeSets(flips map[model.EndpointID]int) {
	used := make(map[string]bool)
	for id, list := range p.from.Lists {
		if _, ok := p.to.Lists[id]; !ok {
			for _, set := range setsOf(list) {
				used[set] = true
			}
		}
	}
	for _, set := range slices.Sorted(maps.Keys(p.from.Sets)) {
		if _, ok := p.to.Sets[set]; ok || used[set] {
			continue
		}
		i := p.write(Step{Action: RemoveSet, Set: set, Members: p.from.Sets[set]})
		for id, flip := range flips {
			if slices.Contains(setsOf(p.from.Lists[id]), set) {
				p.need(i, flip)
				p.settle[i][flip] = true // what a list does with a set that is gone is not known
			}
		}
	}
}

func (p *planner) write(s Step) int {
	p.writes = append(p.writes, s)
	p.before = append(p.before, make(map[int]bool))
	p.settle = append(p.settle, make(map[int]bool))
	return len(p.writes) - 1
}

// need makes one step depend on another; wait does so less strictly.
func (p *planner) need(later, earlier int) {
	if !p.before[later][earlier] {
		p.before[later][earlier] = true
		p.writes[later].Needs = append(p.writes[later].Needs, earlier)
	}
}

func (p *planner) wait(later, earlier int) {
	if !p.before[later][earlier] {
		p.before[later][earlier] = true
		p.writes[later].Waits = append(p.writes[later].Waits, earlier)
	}
}

func (p *planner) needs(later map[string]int, l string, earlier map[string]int, e string) {
	i, ok := later[l]
	j, ok2 := earlier[e]
	if ok && ok2 && i != j {
		p.need(i, j)
	}
}

// verdicts reports which sets are in rules that allow.
func (p *planner) verdicts() map[string]bool {
	allows := make(map[string]bool)
	for _, ruleset := range []*Ruleset{p.from, p.to} {
		for _, list := range ruleset.Lists {
			for _, a := range list {
				if set := setOf(a); set != "" {
					allows[set] = a.Normal().Action == hns.Allow
				}
			}
		}
	}
	return allows
}

// rename recreates a set under an unused name, so that the old one need not be edited where it blocks the
// order. The new set is for the lists that are written anyway, or for all lists if none are.
func (p *planner) rename(set string) {
	name := set
	for {
		name = successor(name)
		_, inForce := p.from.Sets[name]
		_, wanted := p.to.Sets[name]
		if !inForce && !wanted {
			break
		}
	}
	written := func(id model.EndpointID) bool { return !Equal(p.from.Lists[id], p.to.Lists[id]) }
	all := true
	for id, list := range p.to.Lists {
		if written(id) && slices.Contains(setsOf(list), set) {
			all = false
		}
	}
	to := &Ruleset{Lists: make(map[model.EndpointID][]hns.ACL, len(p.to.Lists)), Sets: maps.Clone(p.to.Sets)}
	to.Sets[name] = to.Sets[set]
	p.renamed[name] = set
	if original := p.renamed[set]; original != "" {
		p.renamed[name] = original
	}
	left := false
	for id, list := range p.to.Lists {
		refers := slices.Contains(setsOf(list), set)
		if refers && (all || written(id)) {
			list = withSet(list, set, name)
		} else if refers {
			left = true
		}
		to.Lists[id] = list
	}
	if !left {
		delete(to.Sets, set)
	}
	p.to = to
}

// withSet returns the list with one set replaced by another.
func withSet(list []hns.ACL, set, name string) []hns.ACL {
	list = slices.Clone(list)
	for i := range list {
		if list[i].LocalAddresses == set {
			list[i].LocalAddresses = name
		}
		if list[i].RemoteAddresses == set {
			list[i].RemoteAddresses = name
		}
	}
	return list
}

// successor returns another name for the set of the same rule.
func successor(set string) string {
	rest := set[len(setPrefix):]
	n := slices.Index([]byte(rest), '-')
	return setPrefix + rest[:n] + "x" + rest[n:]
}

// union merges two ascending lists.
func union(a, b []netip.Addr) []netip.Addr {
	all := make([]netip.Addr, 0, max(len(a), len(b)))
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].Compare(b[0]) < 0:
			all, a = append(all, a[0]), a[1:]
		case len(a) == 0 || a[0].Compare(b[0]) > 0:
			all, b = append(all, b[0]), b[1:]
		default:
			all, a, b = append(all, a[0]), a[1:], b[1:]
		}
	}
	return all
}
