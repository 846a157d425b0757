// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// HNS answers a write of a set and one of a list without saying when packets meet them. A list may therefore be in force
// before or after the sets that its plan writes. Two rules make each combination safe:
//
//   - A new list that could open something with any part of these writes gets the addresses of those sets instead
//     (inlineLate). It refers to the sets once it is written for another reason, and then they are in force.
//   - What would open the old list is written after HNS has shown the new one (settle).

// inlineLate replaces references to sets in lists that are to be written, where their members could be late. It reports
// whether there were any.
func (p *planner) inlineLate(flips map[model.EndpointID]int) bool {
	to := &Ruleset{Lists: maps.Clone(p.to.Lists), Sets: maps.Clone(p.to.Sets)}
	results := make(map[string][]hns.ACL) // endpoints may share lists
	changed := false
	for id := range flips {
		old, list := p.from.Lists[id], p.to.Lists[id]
		late := p.lateSets(list)
		if len(late) == 0 {
			continue
		}
		key := hns.FormatACLs("", old) + "\n" + hns.FormatACLs("", list)
		result, known := results[key]
		if !known {
			if p.opens(old, list, late) {
				result = p.inline(list, late)
			}
			results[key] = result
		}
		if result != nil {
			to.Lists[id] = result
			changed = true
		}
	}
	if changed {
		p.to = to
		p.forgetRenamed()
	}
	return changed
}

// lateSets returns the sets of a list with a write that denies something, or with unknown members: the list could be in
// force before they are right.
func (p *planner) lateSets(list []hns.ACL) map[string]bool {
	late := make(map[string]bool)
	for _, set := range setsOf(list) {
		if p.from.Unknown[set] {
			late[set] = true
		}
		for _, i := range []map[string]int{p.add, p.trim} {
			if n, ok := i[set]; ok && p.writes[n].Tightens {
				late[set] = true
			}
		}
	}
	return late
}

// inline returns the list with the members of some sets in place of the references.
func (p *planner) inline(list []hns.ACL, sets map[string]bool) []hns.ACL {
	list = slices.Clone(list)
	for i, a := range list {
		if set := setOf(a); sets[set] {
			list[i] = withMembers(a, p.to.Sets[set])
		}
	}
	return list
}

// withMembers returns an ACL with addresses in place of its set. With addresses Remote is the peer in both directions.
func withMembers(a hns.ACL, members []netip.Addr) hns.ACL {
	set := setOf(a)
	a.LocalAddresses, a.RemoteAddresses = "", EncodeSet(set, members).Values
	return a
}

// inlinedSets returns the sets of a list whose addresses another list has instead.
func (l *Lowering) inlinedSets(list, have []hns.ACL) []string {
	var sets []string
	for _, a := range list {
		set := setOf(a)
		if set == "" || RefersTo(have, set) {
			continue
		}
		a = withMembers(a, l.Sets[set])
		if slices.ContainsFunc(have, func(b hns.ACL) bool { return a.Priority == b.Priority && Equal([]hns.ACL{a}, []hns.ACL{b}) }) {
			sets = append(sets, set)
		}
	}
	return sets
}

// forgetRenamed gives sets that were renamed for lists that no longer refer to them their name back.
func (p *planner) forgetRenamed() {
	for name, original := range p.renamed {
		used := false
		for _, list := range p.to.Lists {
			used = used || RefersTo(list, name)
		}
		if members, ok := p.to.Sets[name]; ok && !used {
			delete(p.to.Sets, name)
			p.to.Sets[original] = members
		}
	}
}

// maxEdits bounds the writes of one list's sets that concern one address. With more the list is taken to open.
const maxEdits = 8

// opens reports whether the new list, beside any part of the writes of sets, allows something that neither the old list
// allowed nor the new one will. Only members of late sets can be concerned.
func (p *planner) opens(old, list []hns.ACL, late map[string]bool) bool {
	before, err := rulesOf(old, p.from.Sets)
	if err != nil {
		before, err = rulesOf(DenyAll(), nil) // the old list cannot excuse anything
	}
	was, err1 := rulesOf(list, p.from.Sets)
	will, err2 := rulesOf(list, p.to.Sets)
	if errors.Join(err, err1, err2) != nil {
		return true
	}
	rules := [3]*hns.Rules{before, was, will}
	done := make(map[[3]string]bool)
	for set := range late {
		if p.from.Unknown[set] {
			return true
		}
		for _, a := range exclusive(p.from.Sets[set], p.to.Sets[set]) {
			for _, d := range []hns.Direction{hns.In, hns.Out} {
				var parts [3]hns.Part
				for i, r := range rules {
					parts[i] = r.Between(d, netip.Addr{}, a, hns.Reading{})
				}
				key := [3]string{parts[0].Key(), parts[1].Key(), parts[2].Key()}
				if done[key] {
					continue
				}
				done[key] = true
				m := moment{parts[0].Matches(), parts[1].Matches(), parts[2].Matches()}
				if m.opens(p) {
					return true
				}
			}
		}
	}
	return false
}

// rulesOf parses a list and the sets that it refers to. A set that does not exist yet has no members.
func rulesOf(list []hns.ACL, sets map[string][]netip.Addr) (*hns.Rules, error) {
	var used []hns.SetPolicy
	for _, set := range setsOf(list) {
		used = append(used, EncodeSet(set, sets[set]))
	}
	return hns.ParseRules(list, used)
}

// exclusive returns the addresses that only one of two ascending lists has.
func exclusive(a, b []netip.Addr) []netip.Addr {
	in := func(list []netip.Addr, addr netip.Addr) bool {
		_, found := slices.BinarySearchFunc(list, addr, netip.Addr.Compare)
		return found
	}
	return slices.DeleteFunc(union(a, b), func(addr netip.Addr) bool { return in(a, addr) && in(b, addr) })
}

// moment is the rules that match one address in one direction: in the old list, and in the new list beside the old sets
// and beside the new ones.
type moment struct{ before, was, will []hns.ACL }

// opens tries every part of the writes that concern the address. A write has happened only if those have that it needs.
func (m *moment) opens(p *planner) bool {
	edits := m.edits(p)
	if len(edits) > maxEdits {
		return true
	}
	cuts := portCutsOf(map[uint16]bool{0: true}, slices.Concat(m.before, m.was, m.will))
	before, after := allowed(m.before, cuts), allowed(m.will, cuts)
	for done := range 1 << len(edits) {
		if !p.possible(edits, done) {
			continue
		}
		for i, allow := range allowed(m.during(p, edits, done), cuts) {
			if allow && !before[i] && !after[i] {
				return true
			}
		}
	}
	return false
}

// edits returns the writes of sets by which the rules that match differ.
func (m *moment) edits(p *planner) []int {
	var edits []int
	for _, a := range m.will {
		if i, ok := p.add[setOf(a)]; ok && !RefersTo(m.was, setOf(a)) {
			edits = append(edits, i)
		}
	}
	for _, a := range m.was {
		if i, ok := p.trim[setOf(a)]; ok && !RefersTo(m.will, setOf(a)) {
			edits = append(edits, i)
		}
	}
	slices.Sort(edits)
	return slices.Compact(edits)
}

// possible reports whether some of the writes can have happened without the others. done has a bit for each.
func (p *planner) possible(edits []int, done int) bool {
	for n, i := range edits {
		for m, j := range edits {
			if done>>n&1 == 1 && done>>m&1 == 0 && p.before[i][j] {
				return false
			}
		}
	}
	return true
}

// during returns the rules that match when some of the writes have happened.
func (m *moment) during(p *planner, edits []int, done int) []hns.ACL {
	has := func(i int) bool {
		n, found := slices.BinarySearch(edits, i)
		return found && done>>n&1 == 1
	}
	var list []hns.ACL
	for _, a := range m.was {
		if set := setOf(a); set == "" || RefersTo(m.will, set) || !has(p.trim[set]) {
			list = append(list, a)
		}
	}
	for _, a := range m.will {
		if set := setOf(a); set != "" && !RefersTo(m.was, set) && has(p.add[set]) {
			list = append(list, a)
		}
	}
	return list
}

// allowed decides ports by rules that are known to match the addresses.
func allowed(list []hns.ACL, cuts []portCut) []bool {
	result := make([]bool, len(cuts))
	var d hns.Direction
	list = slices.Clone(list)
	for i := range list {
		list[i].LocalAddresses, list[i].RemoteAddresses = "", ""
		d = list[i].Direction
	}
	rules, err := hns.ParseRules(list, nil)
	if err != nil || len(list) == 0 {
		return result
	}
	part := rules.Between(d, netip.Addr{}, netip.Addr{}, hns.Reading{})
	for i, at := range cuts {
		result[i] = part.Decide(uint8(at.protocol), at.port, 0).Allow
	}
	return result
}
