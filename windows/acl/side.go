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
	// classes remembers verdicts by class, which is asked for many times.
	classes map[model.PeerClass]cellSet
	// nodeIn tells, per family, which cohorts the node rule lets in.
	nodeIn [2][]int
}

// layout is a direction of a table as rules. The last rule is terminal: it
// matches everything.
type layout struct {
	rules []rule
	// pieces are what stands for a prefix from which others were cut out, per
	// family and prefix node.
	pieces [2]map[int][]netip.Prefix
}

// ruleCost is how many addresses a rule counts for: VFP goes through rules one
// by one, and HNS takes its time for each of them.
const ruleCost = 4

// cost is what layouts are compared by.
func (x *index) cost(l layout) int {
	n := ruleCost * len(l.rules)
	for _, r := range l.rules {
		f := &x.families[r.who.family]
		for _, c := range r.who.cohorts {
			n += len(f.cohorts[c].addrs)
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

// layout works the rules out.
//
// What holds for addresses that nothing else is said about is told by rules
// without addresses, which count for both families. If the families differ,
// both are tried.
func (s *side) layout() layout {
	var best layout
	for i, ground := range s.grounds() {
		l := s.build(ground)
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

// grounds are the verdicts that rules without addresses may give: those of
// either family's addresses that no prefix and no address names.
func (s *side) grounds() []cellSet {
	four, six := s.verdicts(s.families[0].prefixes[0].class), s.verdicts(s.families[1].prefixes[0].class)
	switch {
	case four.equal(six):
		return []cellSet{four}
	case s.options.NoIPv6:
		// IPv6 can have no rule of its own, so this must not allow it.
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

// findNode finds the cohorts that the node rule stands for: "Traffic is allowed
// to a pod if ... the traffic source is the pod's local node"
// (NetworkPolicySpec.ingress).
func (s *side) findNode() {
	if s.d != model.Ingress {
		return
	}
	for v := range s.families {
		for i, c := range s.families[v].cohorts {
			if s.kinds[c.class] == model.KindThisNode && s.verdicts(c.class).equal(s.all) {
				s.nodeIn[v] = append(s.nodeIn[v], i)
			}
		}
	}
}

// nodeRules come before all others. Their addresses may go beyond the cohorts
// (family.node).
func (s *side) nodeRules() []rule {
	var rules []rule
	for v := range s.families {
		if s.d != model.Ingress || s.options.NoIPv6 && v == 1 || len(s.nodeIn[v]) == 0 && len(s.families[v].node) == 0 {
			continue
		}
		rules = append(rules, rule{verdict: model.Allow, cells: s.all, node: true, who: members{family: v, cohorts: s.nodeIn[v]}})
	}
	return rules
}

// build returns the rules over a ground: per family what differs from it, then
// the ground itself. NoIPv6 makes the ground deny what IPv6 might be denied.
//
// What the ground says of some ports and everybody agrees with goes first, and
// the rules behind it are free to say anything of those ports.
func (s *side) build(ground cellSet) layout {
	if s.options.NoIPv6 && s.differsInIPv6(ground) {
		ground = newCellSet(len(s.cells))
	}
	anyone := members{anyone: true}
	constant := newCellSet(len(s.cells))
	if ground.has(0) {
		constant = s.all
	}
	none := newCellSet(len(s.cells))
	free := s.whollyTold(s.agreed(ground).intersect(ground.differ(constant)))
	var l layout
	l.rules = s.layer([]group{{want: ground.intersect(free).union(constant.minus(free)), rest: constant, who: anyone}}, none)
	for v := range s.families {
		if v == 1 && s.options.NoIPv6 {
			continue
		}
		rules, pieces := s.lowerFamily(v, ground, free)
		l.rules = append(l.rules, rules...)
		l.pieces[v] = pieces
	}
	l.rules = append(l.rules, s.layer([]group{{want: ground, rest: constant, who: anyone}}, free)...)
	l.rules = append(l.rules, rule{verdict: verdictOf(ground, 0), cells: s.all, who: anyone})
	return l
}

// whollyTold leaves out port 0 of protocols of which other ports are missing: it
// can be told only together with all of them.
func (s *side) whollyTold(cells cellSet) cellSet {
	for _, p := range model.PortProtocols {
		if zero := s.firstCell(p); cells.has(zero) && !s.ports[p].within(cells) {
			only := newCellSet(len(s.cells))
			only.add(zero)
			cells = cells.minus(only)
		}
	}
	return cells
}

// agreed returns the cells of which every class says what the ground says.
func (s *side) agreed(ground cellSet) cellSet {
	cells := slices.Clone(s.all)
	agree := func(c model.PeerClass) {
		for i, word := range s.verdicts(c) {
			cells[i] &^= word ^ ground[i]
		}
	}
	for v := range s.families {
		for _, p := range s.families[v].prefixes {
			agree(p.class)
		}
		for i, c := range s.families[v].cohorts {
			if !slices.Contains(s.nodeIn[v], i) {
				agree(c.class)
			}
		}
	}
	return cells
}

// differsInIPv6 reports whether the ground allows something that some IPv6
// address is denied.
func (s *side) differsInIPv6(ground cellSet) bool {
	f := &s.families[1]
	return slices.ContainsFunc(f.prefixes, func(p prefixNode) bool { return !ground.within(s.verdicts(p.class)) }) ||
		slices.ContainsFunc(f.cohorts, func(c cohort) bool { return !ground.within(s.verdicts(c.class)) })
}

// lowerFamily returns the rules of one family over a ground, and the pieces of
// prefixes. Holes in prefixes are told by rules in front of them, or cut out,
// whichever gives fewer rules and addresses.
func (s *side) lowerFamily(v int, ground, free cellSet) ([]rule, map[int][]netip.Prefix) {
	t := &terrain{side: s, v: v, f: &s.families[v], ground: ground, free: free, cut: make(map[int][]int)}
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
