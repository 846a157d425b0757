// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"container/heap"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// maxCandidates bounds the sets of ports that are considered for one cover, besides those of the groups
// themselves, which suffice.
const maxCandidates = 256

// demand is a group and the cells of one protocol for which it needs, or may get, rules of one verdict.
type demand struct {
	who members
	// need must be covered; can may be: the cells with that verdict.
	need, can cellSet
}

// cover returns rules of one protocol and verdict. They match every cell where a group wants the verdict
// and the rest does not give it, and no cell where it wants the other verdict. The rules may therefore be
// in any order.
//
// Each rule is a rectangle, members times ports. Finding the fewest rectangles is hard in general. It tries
// two methods and takes the better one. The first takes what single groups want, without sets that others
// make superfluous. The second repeatedly takes the rectangle that covers most. On all tested inputs the
// result is as good as one rule per rule of the policies, or better (TestNotWorseThanNaive).
func (x *index) cover(list []group, rests []cellSet, free cellSet, p model.Protocol, v model.Verdict) []rule {
	var demands []demand
	for i, g := range list {
		ports := x.ports[p]
		can := g.want.intersect(ports)
		if v == model.Deny {
			can = ports.minus(g.want)
		}
		need := g.want.differ(rests[i]).intersect(can).minus(free)
		demands = append(demands, demand{g.who, need, can.union(free.intersect(ports))})
	}
	chosen := x.choose(demands)
	var rules []rule
	taken := x.assign(demands, chosen)
	for c, q := range chosen {
		r := rule{verdict: v, protocols: []model.Protocol{p}}
		var fill, used cellSet
		for i, d := range demands {
			if !taken[i][c] {
				continue
			}
			r.who.family = d.who.family
			r.who.anyone = d.who.anyone
			r.who = r.who.union(d.who)
			if fill == nil {
				fill, used = d.can, d.need.intersect(q)
				continue
			}
			fill, used = fill.intersect(d.can), used.union(d.need.intersect(q))
		}
		if fill == nil {
			continue
		}
		if x.options.Sets {
			used, fill = q, q // a rule must not depend on the current members
		}
		r.ports, r.cells = x.portsOf(p, used, fill)
		rules = append(rules, r)
	}
	return rules
}

// choose returns sets of cells. Every need is within the union of those sets that the group can take.
func (x *index) choose(demands []demand) []cellSet {
	own, all := candidates(demands)
	best := withoutSuperfluous(demands, own)
	if other := withoutSuperfluous(demands, greedy(demands, all)); len(other) < len(best) ||
		len(other) == len(best) && x.size(demands, other) < x.size(demands, best) {
		best = other
	}
	slices.SortFunc(best, func(a, b cellSet) int { return strings.Compare(a.key(), b.key()) })
	return best
}

// size counts the addresses and prefixes that rules for the sets would contain.
func (x *index) size(demands []demand, chosen []cellSet) int {
	n := 0
	for i, taken := range x.assign(demands, chosen) {
		for _, t := range taken {
			if t {
				n += x.memberCount(demands[i].who)
			}
		}
	}
	return n
}

func (x *index) memberCount(m members) int {
	n := len(m.prefixes)
	for _, c := range m.addrGroups {
		n += len(x.families[m.family].addrGroups[c].addrs)
	}
	return n
}

// greedy repeatedly takes the set that covers most of the remaining needs; of equals the first. The gain of
// a set only shrinks, so it is recomputed only when the set comes first.
func greedy(demands []demand, all []cellSet) []cellSet {
	left := make([]cellSet, len(demands))
	for i, d := range demands {
		left[i] = d.need
	}
	takers := takersOf(demands, all)
	gain := func(c int) (n int) {
		for _, i := range takers[c] {
			n += left[i].common(all[c])
		}
		return n
	}
	queue := make(gains, len(all))
	for c := range all {
		queue[c] = gainOf{c, gain(c)}
	}
	heap.Init(&queue)
	var chosen []cellSet
	for len(queue) > 0 && queue[0].gain > 0 {
		c := queue[0].candidate
		if now := gain(c); now < queue[0].gain {
			queue[0].gain = now
			heap.Fix(&queue, 0)
			continue
		}
		heap.Pop(&queue)
		chosen = append(chosen, all[c])
		for _, i := range takers[c] {
			left[i] = left[i].minus(all[c])
		}
	}
	return chosen
}

// gains is a heap of candidates, the one with the largest gain first.
type gains []gainOf

type gainOf struct{ candidate, gain int }

func (g gains) Len() int { return len(g) }
func (g gains) Less(i, j int) bool {
	return g[i].gain > g[j].gain || g[i].gain == g[j].gain && g[i].candidate < g[j].candidate
}
func (g gains) Swap(i, j int) { g[i], g[j] = g[j], g[i] }
func (g *gains) Push(x any)   { *g = append(*g, x.(gainOf)) }
func (g *gains) Pop() any {
	last := (*g)[len(*g)-1]
	*g = (*g)[:len(*g)-1]
	return last
}

// takersOf lists, for each set, the demands that can take it.
func takersOf(demands []demand, sets []cellSet) [][]int {
	takers := make([][]int, len(sets))
	for c, q := range sets {
		for i, d := range demands {
			if q.within(d.can) {
				takers[c] = append(takers[c], i)
			}
		}
	}
	return takers
}

// candidates returns the maximal sets for some groups: those of single groups (own), and their
// intersections too (all, which includes own). The largest comes first.
func candidates(demands []demand) (own, all []cellSet) {
	seen := make(map[string]cellSet)
	var needed cellSet
	for _, d := range demands {
		if needed == nil {
			needed = d.need
		}
		needed = needed.union(d.need)
	}
	var queue []cellSet
	push := func(q cellSet) {
		if k := q.key(); seen[k] == nil && !q.empty() {
			seen[k] = q
			queue = append(queue, q)
		}
	}
	for _, d := range demands {
		if !d.need.empty() {
			push(d.can.intersect(needed))
		}
	}
	base := slices.Clone(queue)
	for i := 0; i < len(queue); i++ {
		for _, b := range base {
			if len(queue) < maxCandidates {
				push(queue[i].intersect(b))
			}
		}
	}
	sortBySize(base)
	sortBySize(queue)
	return base, queue
}

func sortBySize(list []cellSet) {
	slices.SortFunc(list, func(a, b cellSet) int {
		if c := b.count() - a.count(); c != 0 {
			return c
		}
		return strings.Compare(a.key(), b.key())
	})
}

// withoutSuperfluous drops, from the first on, sets whose every needed cell is covered by another set.
func withoutSuperfluous(demands []demand, chosen []cellSet) []cellSet {
	takers := takersOf(demands, chosen)
	covers := make([]map[int]int, len(demands)) // sets that cover each cell
	for i := range demands {
		covers[i] = make(map[int]int)
	}
	for c, q := range chosen {
		for _, i := range takers[c] {
			for cell := range q.intersect(demands[i].need).all() {
				covers[i][cell]++
			}
		}
	}
	var kept []cellSet
	for c, q := range chosen {
		if needed(demands, takers[c], covers, q) {
			kept = append(kept, q)
			continue
		}
		for _, i := range takers[c] {
			for cell := range q.intersect(demands[i].need).all() {
				covers[i][cell]--
			}
		}
	}
	return kept
}

func needed(demands []demand, takers []int, covers []map[int]int, q cellSet) bool {
	for _, i := range takers {
		for cell := range q.intersect(demands[i].need).all() {
			if covers[i][cell] == 1 {
				return true
			}
		}
	}
	return false
}

// assign decides which groups become members of which chosen set. Without HNS sets a group takes as few as
// it needs. With HNS sets it takes all that it can use: membership then depends only on the set and the
// group's own verdicts, and not on other groups.
func (x *index) assign(demands []demand, chosen []cellSet) [][]bool {
	taken := make([][]bool, len(demands))
	for i, d := range demands {
		taken[i] = make([]bool, len(chosen))
		left := d.need
		for !left.empty() {
			best, gain := -1, 0
			for c, q := range chosen {
				if n := left.common(q); !taken[i][c] && q.within(d.can) && n > gain {
					best, gain = c, n
				}
			}
			if best < 0 {
				break
			}
			taken[i][best] = true
			left = left.minus(chosen[best])
		}
		if x.options.Sets && len(d.who.addrGroups) > 0 {
			for c, q := range chosen {
				taken[i][c] = q.within(d.can) && q.meets(d.need)
			}
		}
	}
	return taken
}
