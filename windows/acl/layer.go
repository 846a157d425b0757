// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// group is a set of remote addresses with the same wanted cells, for which the rules that follow allow the
// same rest. Both are sets of allowed cells.
type group struct {
	want, rest cellSet
	who        members
}

// groups collects members by wanted cells and rest.
type groups struct {
	byKey map[string]*group
	order []string
}

func (g *groups) add(want, rest cellSet, who members) {
	kind := "c"
	if len(who.prefixes) > 0 {
		kind = "p"
	}
	key := kind + want.key() + rest.key()
	if have := g.byKey[key]; have != nil {
		// sorted sorts them later, once: there may be thousands of members.
		have.who.addrGroups = append(have.who.addrGroups, who.addrGroups...)
		have.who.prefixes = append(have.who.prefixes, who.prefixes...)
		return
	}
	who.addrGroups, who.prefixes = slices.Clone(who.addrGroups), slices.Clone(who.prefixes)
	if g.byKey == nil {
		g.byKey = make(map[string]*group)
	}
	g.byKey[key] = &group{want, rest, who}
	g.order = append(g.order, key)
}

func (g *groups) sorted() []group {
	slices.SortFunc(g.order, strings.Compare)
	list := make([]group, len(g.order))
	for i, k := range g.order {
		list[i] = *g.byKey[k]
		for _, members := range []*[]int{&list[i].who.addrGroups, &list[i].who.prefixes} {
			slices.Sort(*members)
			*members = slices.Compact(*members)
		}
	}
	return list
}

// parts returns the groups in an order that does not depend on how they were found. With HNS sets it
// separates single addresses from prefixes: no ACL holds both.
func (g *groups) parts(sets bool) [][]group {
	all := g.sorted()
	if !sets {
		return [][]group{all}
	}
	var parts [2][]group
	for _, e := range all {
		kind := min(1, len(e.who.prefixes))
		parts[kind] = append(parts[kind], e)
	}
	return parts[:]
}

// ranks are the kinds of rules that express a group. The rules of a layer come in three ranks: ports, whole
// protocols, every protocol. Each rank relies on the ranks after it.
//
// If other protocols (cell 0) of a group differ from the rest, it gets a rule for every protocol. Only
// cells that differ from cell 0 then need rules for ports. A protocol whose port 0 differs gets a rule
// without ports for the same reason: whether HNS accepts port 0 in a list is not known.
type ranks struct {
	everything bool
	protocols  []model.Protocol
	// behind is the result of the rules after each rank: ports, whole protocols, every protocol.
	behind [3]cellSet
}

// The ranks, in order.
const (
	rankPorts = iota
	rankProtocols
	rankEverything
)

// rank computes the ranks of a group. free are cells that an earlier rule decides.
func (x *index) rank(want, rest, free cellSet) ranks {
	var r ranks
	r.behind[rankEverything] = rest
	if want.has(0) != rest.has(0) {
		r.everything = true
		rest = newCellSet(len(x.cells))
		if want.has(0) {
			rest = x.all
		}
	}
	r.behind[rankProtocols] = rest
	for _, p := range model.PortProtocols {
		zero := x.firstCell(p)
		if want.has(zero) == rest.has(zero) || free.has(zero) {
			continue
		}
		r.protocols = append(r.protocols, p)
		if want.has(zero) {
			rest = rest.union(x.ports[p])
		} else {
			rest = rest.minus(x.ports[p])
		}
	}
	r.behind[rankPorts] = rest
	return r
}

// layer returns rules that, before the rest, give every group its wanted cells. They may give any verdict
// for free cells. The groups must be disjoint.
func (x *index) layer(list []group, free cellSet) []rule {
	var everything, whole, rules []rule
	rests := make([]cellSet, len(list))
	for i, g := range list {
		r := x.rank(g.want, g.rest, free)
		if r.everything {
			everything = joinRule(everything, rule{verdict: verdictOf(g.want, 0), cells: x.all, who: g.who})
		}
		for _, p := range r.protocols {
			whole = joinRule(whole, rule{verdict: verdictOf(g.want, x.firstCell(p)), protocols: []model.Protocol{p}, cells: x.ports[p], who: g.who})
		}
		rests[i] = r.behind[rankPorts]
	}
	for _, p := range model.PortProtocols {
		for _, v := range []model.Verdict{model.Deny, model.Allow} {
			rules = append(rules, x.cover(list, rests, free, p, v)...)
		}
	}
	ranked := append(joinProtocols(rules), joinProtocols(whole)...)
	slices.SortFunc(everything, compareRules)
	return append(ranked, everything...)
}

func verdictOf(allowed cellSet, cell int) model.Verdict {
	if allowed.has(cell) {
		return model.Allow
	}
	return model.Deny
}

// firstCell returns the cell of port 0 of a protocol.
func (x *index) firstCell(p model.Protocol) int {
	return slices.IndexFunc(x.cells, func(c cell) bool { return c.protocol == p })
}

// joinRule adds the members of a rule to one that is otherwise equal.
func joinRule(list []rule, r rule) []rule {
	for i := range list {
		if list[i].verdict == r.verdict && slices.Equal(list[i].protocols, r.protocols) {
			list[i].who = list[i].who.union(r.who)
			return list
		}
	}
	return append(list, r)
}

// joinProtocols merges rules that differ only in the protocol. The rules may be in any order.
func joinProtocols(rules []rule) []rule {
	var joined []rule
	for _, r := range rules {
		i := slices.IndexFunc(joined, func(o rule) bool {
			return o.verdict == r.verdict && slices.Equal(o.ports, r.ports) && o.who.equal(r.who)
		})
		if i < 0 {
			joined = append(joined, r)
			continue
		}
		joined[i].protocols = append(slices.Clone(joined[i].protocols), r.protocols...)
		joined[i].cells = joined[i].cells.union(r.cells)
	}
	slices.SortFunc(joined, compareRules)
	return joined
}
