// SPDX-License-Identifier: Apache-2.0

package acl

import "slices"

// order sorts the steps so that each follows those it depends on. If that is impossible, it returns a set
// that is part of a cycle.
func (p *planner) order() (stuck string) {
	p.steps = nil
	place := make(map[int]int) // in steps
	confirmed := -1            // place of the last confirmation
	for len(place) < len(p.writes) {
		best, unconfirmed := -1, false
		for i := range p.writes {
			if _, done := place[i]; done || !p.ready(i, place) {
				continue
			}
			if !p.settled(i, place, confirmed) {
				unconfirmed = true
			} else if best < 0 || p.writes[i].Action < p.writes[best].Action {
				best = i
			}
		}
		if best < 0 && unconfirmed {
			confirmed = len(p.steps)
			p.steps = append(p.steps, Step{Action: Confirm})
			continue
		}
		if best < 0 {
			return p.stuck(place)
		}
		s := p.writes[best]
		s.Needs, s.Waits = renumber(s.Needs, place), renumber(s.Waits, place)
		if len(p.settle[best]) > 0 {
			s.Needs = append(s.Needs, confirmed)
		}
		place[best] = len(p.steps)
		p.steps = append(p.steps, s)
	}
	return ""
}

func (p *planner) ready(i int, place map[int]int) bool {
	for j := range p.before[i] {
		if _, done := place[j]; !done {
			return false
		}
	}
	return true
}

// settled reports whether all lists that a step follows are confirmed.
func (p *planner) settled(i int, place map[int]int, confirmed int) bool {
	for j := range p.settle[i] {
		if place[j] > confirmed {
			return false
		}
	}
	return true
}

func renumber(list []int, place map[int]int) []int {
	var out []int
	for _, i := range list {
		out = append(out, place[i])
	}
	slices.Sort(out)
	return out
}

// stuck returns the first set with an edit that is part of a cycle. It starts at a remaining step and
// follows predecessors until one repeats.
func (p *planner) stuck(place map[int]int) string {
	first := func(of map[int]bool) int {
		best := -1
		for j := range of {
			if _, done := place[j]; !done && (best < 0 || j < best) {
				best = j
			}
		}
		return best
	}
	at := 0
	for _, done := place[at]; done; _, done = place[at] {
		at++
	}
	for range p.writes {
		at = first(p.before[at]) // now certainly inside a cycle
	}
	for p.writes[at].Action == WriteList {
		at = first(p.before[at])
	}
	return p.writes[at].Set
}
