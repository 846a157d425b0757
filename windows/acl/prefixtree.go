// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"net/netip"
	"slices"
)

// maxCuts bounds the number of prefixes whose holes it tries to cut out.
const maxCuts = 16

// prefixTree is the prefixes and single addresses of one family over a base verdict. From the most specific
// to the most general, each part whose verdict differs from its surroundings gets rules.
type prefixTree struct {
	*side
	v    int
	f    *family
	base cellSet
	free cellSet // see side.build
	// cut maps a prefix to the prefixes inside it that are cut out of it: they have the same verdict as the
	// surroundings of the prefix.
	cut map[int][]int
}

// want returns the verdict of a prefix. around returns that of its surroundings.
func (t *prefixTree) want(p int) cellSet { return t.verdicts(t.f.prefixes[p].class) }

func (t *prefixTree) around(p int) cellSet {
	if p == 0 {
		return t.base
	}
	return t.want(t.f.prefixes[p].parent)
}

// live reports whether a prefix needs rules.
func (t *prefixTree) live(p int) bool {
	if t.want(p).equal(t.around(p)) {
		return false
	}
	for _, holes := range t.cut {
		if slices.Contains(holes, p) {
			return false
		}
	}
	return true
}

// rules returns the rules in order. Disjoint parts share a layer; a prefix is in a later layer than its
// parts.
func (t *prefixTree) rules() []rule {
	heights := make([]int, len(t.f.prefixes))
	lift := func(p, height int) {
		for ; p >= 0; p = t.f.prefixes[p].parent {
			heights[p] = max(heights[p], height)
		}
	}
	var layers []groups
	add := func(height int, want, rest cellSet, who members) {
		for len(layers) <= height {
			layers = append(layers, groups{})
		}
		layers[height].add(want, rest, who)
	}
	for i, c := range t.f.addrGroups {
		want, rest := t.verdicts(c.class), t.want(c.cover)
		if want.equal(rest) || slices.Contains(t.nodeIn[t.v], i) {
			continue
		}
		lift(c.cover, 1)
		add(0, want, rest, members{family: t.v, addrGroups: []int{i}})
	}
	for p := len(t.f.prefixes) - 1; p >= 0; p-- {
		if !t.live(p) {
			continue
		}
		lift(t.f.prefixes[p].parent, heights[p]+1)
		add(heights[p], t.want(p), t.around(p), members{family: t.v, prefixes: []int{p}})
	}
	var rules []rule
	for i := range layers {
		for _, part := range layers[i].parts(t.options.Sets) {
			rules = append(rules, t.layer(part, t.free)...)
		}
	}
	return t.joinRules(rules)
}

// joinRules merges rules that differ only in their addresses. It requires that no rule in between
// contradicts them for the same packets.
func (t *prefixTree) joinRules(rules []rule) []rule {
	for j := 1; j < len(rules); j++ {
		for i := range j {
			if !sameButMembers(rules[i], rules[j]) || t.options.Sets && !sameKind(rules[i].who, rules[j].who) {
				continue
			}
			joined := rules[i]
			joined.who = joined.who.union(rules[j].who)
			between := rules[i+1 : j]
			if t.independent(rules[j], between) {
				rules[i] = joined
				rules = slices.Delete(rules, j, j+1)
			} else if t.independent(rules[i], between) {
				rules[j] = joined
				rules = slices.Delete(rules, i, i+1)
			} else {
				continue
			}
			j--
			break
		}
	}
	return rules
}

func sameButMembers(a, b rule) bool {
	return a.verdict == b.verdict && slices.Equal(a.protocols, b.protocols) && slices.Equal(a.ports, b.ports)
}

// sameKind reports whether both are single addresses or both prefixes, so that the merged rule needs no
// additional set or list.
func sameKind(a, b members) bool { return (len(a.addrGroups) == 0) == (len(b.addrGroups) == 0) }

// independent reports whether the rule may be swapped with all rules of the list.
func (t *prefixTree) independent(r rule, list []rule) bool {
	return !slices.ContainsFunc(list, func(o rule) bool {
		return o.verdict != r.verdict && o.cells.meets(r.cells) && o.who.overlaps(r.who, t.f)
	})
}

// possibleCut is a prefix and the holes in it.
type possibleCut struct {
	around int
	holes  []int
}

// cuts returns prefixes with holes that have the same verdict as the surroundings of the prefix.
func (t *prefixTree) cuts() []possibleCut {
	var list []possibleCut
	for p := range t.f.prefixes {
		if !t.live(p) || len(list) == maxCuts {
			continue
		}
		c := possibleCut{around: p}
		for h := p + 1; h < len(t.f.prefixes); h++ {
			if t.f.encloses(p, h) && t.live(h) && t.want(h).equal(t.around(p)) && t.innermostLive(h) == p {
				c.holes = append(c.holes, h)
			}
		}
		if len(c.holes) > 0 {
			list = append(list, c)
		}
	}
	return list
}

// possible reports whether a cut is compatible with the chosen ones: a prefix that is cut out must not have
// holes, nor be cut out of two prefixes.
func (t *prefixTree) possible(c possibleCut) bool {
	return t.live(c.around) && !slices.ContainsFunc(c.holes, func(h int) bool { return t.cut[h] != nil || !t.live(h) })
}

// innermostLive returns the longest live prefix around a prefix, or -1.
func (t *prefixTree) innermostLive(p int) int {
	for p = t.f.prefixes[p].parent; p >= 0 && !t.live(p); p = t.f.prefixes[p].parent {
	}
	return p
}

// pieces returns the rest of every prefix with cuts.
func (t *prefixTree) pieces() map[int][]netip.Prefix {
	all := make(map[int][]netip.Prefix, len(t.cut))
	for p, holes := range t.cut {
		prefixes := make([]netip.Prefix, len(holes))
		for i, h := range holes {
			prefixes[i] = t.f.prefixes[h].prefix
		}
		all[p] = outside(t.f.prefixes[p].prefix, prefixes)
	}
	return all
}

// cost counts rules and addresses.
func (t *prefixTree) cost(rules []rule) int {
	l := layout{rules: rules}
	l.pieces[t.v] = t.pieces()
	return t.index.cost(l)
}
