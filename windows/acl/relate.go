// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// relate adds the order that the lists of one endpoint require.
func (p *planner) relate(id model.EndpointID, flips map[model.EndpointID]int) {
	old, new := p.from.Lists[id], p.to.Lists[id]
	p.relateSets(old)
	p.relateSets(new)
	flip, changes := flips[id]
	if !changes {
		return
	}
	olds, news := setsOf(old), setsOf(new)
	for _, set := range news {
		add, adds := p.add[set]
		trim, trims := p.trim[set]
		joins := !slices.Contains(olds, set)
		if adds {
			p.need(flip, add)
		}
		if trims && (joins || !within(guards(old, set), guards(new, set))) {
			p.need(flip, trim) // the new list must not meet members that are about to leave
		}
	}
	for _, set := range olds {
		add, adds := p.add[set]
		trim, trims := p.trim[set]
		leaves := !slices.Contains(news, set)
		if trims {
			p.follow(trim, flip)
		}
		if adds && (leaves || !within(guards(new, set), guards(old, set))) {
			p.follow(add, flip) // the old list must not meet new members
		}
	}
}

// follow lets an edit of a set follow a list that is written. If the edit could open the list's predecessor, HNS must have
// shown the new list before.
func (p *planner) follow(edit, flip int) {
	p.wait(edit, flip)
	if !p.writes[edit].Tightens {
		p.settle[edit][flip] = true
	}
}

// relateSets orders the edits of the sets that one list refers to. A moving member is never in neither of
// two sets. If two rules contradict each other, the first is an exception from the second. New members then
// enter the first set first, and leave it last.
func (p *planner) relateSets(list []hns.ACL) {
	var edited []hns.ACL
	for _, a := range list {
		set := setOf(a)
		_, adds := p.add[set]
		_, trims := p.trim[set]
		if adds || trims {
			edited = append(edited, a)
		}
	}
	for i, a := range edited {
		for j, b := range edited {
			first, second := setOf(a), setOf(b)
			p.needs(p.trim, second, p.add, first)
			if i < j && contradict(a, b) {
				p.needs(p.add, second, p.add, first)
				p.needs(p.trim, first, p.trim, second)
			}
		}
	}
}

// guards returns, as texts, the earlier rules that contradict the rule of a set. A list in force and its
// successor may share a set during a change only if these rules agree in both.
func guards(list []hns.ACL, set string) []string {
	var texts []string
	for j, b := range list {
		if setOf(b) != set {
			continue
		}
		for _, a := range list[:j] {
			if contradict(a, b) {
				a = a.Normal()
				a.ID, a.Priority = "", 0
				texts = append(texts, hns.FormatACLs("", []hns.ACL{a}))
			}
		}
	}
	return texts
}

func within(some, all []string) bool {
	return !slices.ContainsFunc(some, func(s string) bool { return !slices.Contains(all, s) })
}

// contradict reports whether two rules could match one packet with different verdicts, judged by protocols,
// ports and families.
func contradict(a, b hns.ACL) bool {
	a, b = a.Normal(), b.Normal()
	if a.Action == b.Action || a.Direction != b.Direction || a.RuleType != hns.Switch || b.RuleType != hns.Switch {
		return false
	}
	if s, t := setOf(a), setOf(b); s != "" && t != "" {
		v, _, _ := parseSetID(s)
		w, _, _ := parseSetID(t)
		if v != w {
			return false
		}
	}
	p, _ := hns.ParseProtocols(a.Protocols)
	q, _ := hns.ParseProtocols(b.Protocols)
	if len(p) > 0 && len(q) > 0 && !slices.ContainsFunc(p, func(n uint8) bool { return slices.Contains(q, n) }) {
		return false
	}
	ports := func(a hns.ACL) []hns.PortRange {
		r, _ := hns.ParsePorts(a.LocalPorts + a.RemotePorts) // one of the two is empty
		return r
	}
	r, t := ports(a), ports(b)
	return len(r) == 0 || len(t) == 0 || slices.ContainsFunc(r, func(x hns.PortRange) bool {
		return slices.ContainsFunc(t, func(y hns.PortRange) bool { return x.First <= y.Last && y.First <= x.Last })
	})
}
