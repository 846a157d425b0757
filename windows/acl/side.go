// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// side lowers one direction of one table.
type side struct {
	*index
	table *model.Side
	d     model.Direction
	rows  map[*model.Row]cellSet
	// classes caches verdicts by class.
	classes map[model.PeerClass]cellSet
	// nodeIn lists, per family, the address groups that the node rule allows.
	nodeIn [2][]int
}

// layout is a direction of a table as rules. The last rule is terminal: it matches everything.
type layout struct {
	rules []rule
	// pieces replace a prefix from which others were cut out, per family and prefix node.
	pieces [2]map[int][]netip.Prefix
}

// ruleCost is how many addresses a rule counts for: VFP evaluates rules one by one, and HNS takes time for
// each of them.
const ruleCost = 4

// cost returns the cost by which layouts are compared.
func (x *index) cost(l layout) int {
	n := ruleCost * len(l.rules)
	for _, r := range l.rules {
		f := &x.families[r.who.family]
		for _, c := range r.who.addrGroups {
			n += len(f.addrGroups[c].addrs)
		}
		for _, p := range r.who.prefixes {
			n += max(1, len(l.pieces[r.who.family][p]))
		}
	}
	return n
}

// lowerSide returns the rules of one direction of a table.
func (x *index) lowerSide(t *model.Table, d model.Direction, m *memory) layout {
	s := newSide(x, t, d)
	if m == nil {
		return s.layout()
	}
	return m.layout(s)
}

// layout computes the rules.
//
// Rules without addresses express the base verdict, for addresses without other rules. They apply to both
// families. If the base verdicts of the families differ, it tries both.
func (s *side) layout() layout {
	var best layout
	for i, base := range s.baseVerdicts() {
		l := s.build(base)
		if i == 0 || s.cost(l) < s.cost(best) {
			best = l
		}
	}
	best.rules = append(s.nodeRules(), best.rules...)
	return best
}

func newSide(x *index, t *model.Table, d model.Direction) *side {
	s := &side{index: x, table: &t.Sides[d], d: d, rows: make(map[*model.Row]cellSet), classes: make(map[model.PeerClass]cellSet)}
	s.findNode()
	return s
}

// baseVerdicts returns the possible verdicts of rules without addresses: those of the addresses of either
// family that no prefix and no address names.
func (s *side) baseVerdicts() []cellSet {
	four, six := s.verdicts(s.families[0].prefixes[0].class), s.verdicts(s.families[1].prefixes[0].class)
	switch {
	case four.equal(six):
		return []cellSet{four}
	case s.options.NoIPv6:
		// IPv6 cannot have its own rules, so the base must not allow it.
		return []cellSet{newCellSet(len(s.cells))}
	}
	return []cellSet{four, six}
}

// verdicts returns the allowed cells of a class.
func (s *side) verdicts(c model.PeerClass) cellSet {
	v, ok := s.classes[c]
	if !ok {
		v = s.verdictsOf(s.table.Row(c))
		s.classes[c] = v
	}
	return v
}

func (s *side) verdictsOf(row *model.Row) cellSet {
	if v, ok := s.rows[row]; ok {
		return v
	}
	v := newCellSet(len(s.cells))
	for i, cell := range s.cells {
		if row != nil && row.Cell(cell.class).Verdict == model.Allow {
			v.add(i)
		}
	}
	s.rows[row] = v
	return v
}

// findNode finds the address groups of the node rule: "Traffic is allowed to a pod if ... the traffic
// source is the pod's local node" (NetworkPolicySpec.ingress).
func (s *side) findNode() {
	if s.d != model.Ingress {
		return
	}
	for v := range s.families {
		for i, c := range s.families[v].addrGroups {
			if s.kinds[c.class] == model.KindThisNode && s.verdicts(c.class).equal(s.all) {
				s.nodeIn[v] = append(s.nodeIn[v], i)
			}
		}
	}
}

// nodeRules returns the rules that precede all others. They may contain addresses outside the address
// groups (family.node).
func (s *side) nodeRules() []rule {
	var rules []rule
	for v := range s.families {
		if s.d != model.Ingress || s.options.NoIPv6 && v == 1 || len(s.nodeIn[v]) == 0 && len(s.families[v].node) == 0 {
			continue
		}
		rules = append(rules, rule{verdict: model.Allow, cells: s.all, node: true, who: members{family: v, addrGroups: s.nodeIn[v]}})
	}
	return rules
}

// build returns the rules over a base verdict: per family the differences from it, then the base itself.
// With NoIPv6 the base denies what IPv6 might be denied.
//
// Ports for which every class agrees with the base come first. The rules after them may then give any
// verdict for those ports.
func (s *side) build(base cellSet) layout {
	if s.options.NoIPv6 && s.differsInIPv6(base) {
		base = newCellSet(len(s.cells))
	}
	anyone := members{anyone: true}
	constant := newCellSet(len(s.cells))
	if base.has(0) {
		constant = s.all
	}
	none := newCellSet(len(s.cells))
	free := s.dropPartialZero(s.agreed(base).intersect(base.differ(constant)))
	var l layout
	l.rules = s.layer([]group{{want: base.intersect(free).union(constant.minus(free)), rest: constant, who: anyone}}, none)
	for v := range s.families {
		if v == 1 && s.options.NoIPv6 {
			continue
		}
		rules, pieces := s.lowerFamily(v, base, free)
		l.rules = append(l.rules, rules...)
		l.pieces[v] = pieces
	}
	l.rules = append(l.rules, s.layer([]group{{want: base, rest: constant, who: anyone}}, free)...)
	l.rules = append(l.rules, rule{verdict: verdictOf(base, 0), cells: s.all, who: anyone})
	return l
}

// dropPartialZero removes port 0 of protocols of which other ports are missing: only a rule for the whole
// protocol can match port 0.
func (s *side) dropPartialZero(cells cellSet) cellSet {
	for _, p := range model.PortProtocols {
		if zero := s.firstCell(p); cells.has(zero) && !s.ports[p].within(cells) {
			only := newCellSet(len(s.cells))
			only.add(zero)
			cells = cells.minus(only)
		}
	}
	return cells
}

// agreed returns the cells for which every class has the verdict of the base.
func (s *side) agreed(base cellSet) cellSet {
	cells := slices.Clone(s.all)
	agree := func(c model.PeerClass) {
		for i, word := range s.verdicts(c) {
			cells[i] &^= word ^ base[i]
		}
	}
	for v := range s.families {
		for _, p := range s.families[v].prefixes {
			agree(p.class)
		}
		for i, c := range s.families[v].addrGroups {
			if !slices.Contains(s.nodeIn[v], i) {
				agree(c.class)
			}
		}
	}
	return cells
}

// differsInIPv6 reports whether the base allows something that some IPv6 address is denied.
func (s *side) differsInIPv6(base cellSet) bool {
	f := &s.families[1]
	return slices.ContainsFunc(f.prefixes, func(p prefixNode) bool { return !base.within(s.verdicts(p.class)) }) ||
		slices.ContainsFunc(f.addrGroups, func(c addressGroup) bool { return !base.within(s.verdicts(c.class)) })
}

// lowerFamily returns the rules of one family over a base verdict, and the pieces of prefixes. Holes in
// prefixes become preceding rules or are cut out, whichever needs fewer rules and addresses.
func (s *side) lowerFamily(v int, base, free cellSet) ([]rule, map[int][]netip.Prefix) {
	t := &prefixTree{side: s, v: v, f: &s.families[v], base: base, free: free, cut: make(map[int][]int)}
	best := t.rules()
	bestCost := t.cost(best)
	for _, c := range t.cuts() {
		if !t.possible(c) {
			continue
		}
		t.cut[c.around] = c.holes
		rules := t.rules()
		if n := t.cost(rules); n < bestCost {
			best, bestCost = rules, n
		} else {
			delete(t.cut, c.around)
		}
	}
	return best, t.pieces()
}
