// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// Plan returns the States that lead a data path from old to new. Every packet meets the old decision or the
// new one, never a mixture, and every cell (endpoint, direction, address, port) changes at most once. The
// last State decides as new does. old is the State in force, or nil.
//
// A backend goes from one State to the next by writes that are each atomic, in this order:
//
//  1. Tables and rows that were missing, and cells of port classes that no
//     port had;
//  2. Addresses added or changed, then prefixes added or changed (longest
//     first), then prefixes removed (shortest first), then addresses removed;
//     ports;
//  3. the Table of each endpoint;
//  4. removal of everything unreferenced.
//
// This is refine, flip, collect. Addresses or ports may change class together with tables. They first move
// to intermediate classes, for which every table in force decides as before. Then endpoints flip to their
// new tables, and then the moves are completed.
func Plan(old, new *model.State) []*model.State {
	if old == nil {
		return []*model.State{new}
	}
	p := &planner{old: old, new: separate(old, new)}
	p.findMoves()
	if len(p.ports.moves) == 0 && (len(p.peers.moves) == 0 || !p.tablesChange()) {
		return []*model.State{p.new}
	}
	p.choosePortVia()
	p.choosePeerVia()
	p.replaceShared()
	return p.states()
}

// separate gives a new identity to every table of new that shares the identity of a table of old but
// contradicts it. This happens when the numbers of classes do not continue, for example after a restart.
func separate(old, new *model.State) *model.State {
	renamed := make(map[model.TableID]model.TableID)
	for id, t := range new.Policy.Tables {
		if was, ok := old.Policy.Tables[id]; ok && was != t && contradict(old, was, new, t) {
			renamed[id] = successor(id, old, new)
		}
	}
	if len(renamed) == 0 {
		return new
	}
	s := *new
	s.Policy.Tables = maps.Clone(new.Policy.Tables)
	s.Policy.Endpoints = maps.Clone(new.Policy.Endpoints)
	for from, to := range renamed {
		t := *s.Policy.Tables[from]
		t.ID = to
		delete(s.Policy.Tables, from)
		s.Policy.Tables[to] = &t
	}
	for id, e := range s.Policy.Endpoints {
		if to, ok := renamed[e.Table]; ok {
			e.Table = to
			s.Policy.Endpoints[id] = e
		}
	}
	return &s
}

// successor returns an identity that no State uses.
func successor(id model.TableID, states ...*model.State) model.TableID {
	for {
		id[len(id)-1]++
		if !slices.ContainsFunc(states, func(s *model.State) bool { return s.Policy.Tables[id] != nil }) {
			return id
		}
	}
}

// contradict reports whether the tables differ in a cell of a peer class and a port class that both States
// use.
func contradict(old *model.State, was *model.Table, new *model.State, is *model.Table) bool {
	var ports []model.PortClass
	for _, d := range model.Directions {
		for _, c := range differing(old, &was.Sides[d], new, &is.Sides[d]) {
			a, b := was.Sides[d].Row(c), is.Sides[d].Row(c)
			if a == b {
				continue
			}
			if ports == nil {
				ports = sharedPorts(old, new)
			}
			for _, n := range ports {
				if a.Cell(n).Verdict != b.Cell(n).Verdict {
					return true
				}
			}
		}
	}
	return false
}

// differing lists the classes of both States for which the sides may have different rows.
func differing(old *model.State, was *model.Side, new *model.State, is *model.Side) []model.PeerClass {
	if was.Default != is.Default {
		return shared(old.Policy.PeerClasses, new.Policy.PeerClasses, func(i model.PeerClassInfo) model.PeerClass { return i.Class })
	}
	has := func(s *model.State, c model.PeerClass) bool {
		_, ok := slices.BinarySearchFunc(s.Policy.PeerClasses, c, func(i model.PeerClassInfo, c model.PeerClass) int { return cmp.Compare(i.Class, c) })
		return ok
	}
	var classes []model.PeerClass
	for c := range is.Rows.Changes(was.Rows) {
		if has(old, c) && has(new, c) {
			classes = append(classes, c)
		}
	}
	return classes
}

func sharedPorts(old, new *model.State) []model.PortClass {
	return shared(old.Policy.PortClasses, new.Policy.PortClasses, func(i model.PortClassInfo) model.PortClass { return i.Class })
}

// shared returns the numbers in both lists, which are sorted by number.
func shared[I any, N cmp.Ordered](old, new []I, number func(I) N) []N {
	var both []N
	for i, j := 0, 0; i < len(old) && j < len(new); {
		switch a, b := number(old[i]), number(new[j]); {
		case a < b:
			i++
		case a > b:
			j++
		default:
			both = append(both, a)
			i++
			j++
		}
	}
	return both
}

// move is a change of class, for either kind of class.
type move struct{ old, new uint32 }

// moves are the changes of one kind of class, each with an intermediate number. The intermediate number is
// mostly the new number itself, if it was unused and nothing else moves to it. Otherwise it is an unused
// number.
type moves struct {
	moves map[move]uint32
	// via maps an intermediate number to its move.
	via map[uint32]move
	// targets are new numbers that are reached via an intermediate number.
	targets map[uint32]bool
}

func (m *moves) add(old, new uint32) {
	if old != new {
		m.moves[move{old, new}] = new
	}
}

// during returns the intermediate number of a change.
func (m *moves) during(old, new uint32) uint32 {
	if old == new {
		return old
	}
	return m.moves[move{old, new}]
}

// route sets the intermediate number of a change.
func (m *moves) route(mv move, via uint32) {
	m.moves[mv] = via
	m.via[via] = mv
	if via != mv.new {
		m.targets[mv.new] = true
	}
}

type planner struct {
	old, new     *model.State
	peers, ports moves
	// prefixes are those of both States. pieces are the port ranges that no bound divides. Both are nil
	// where nothing changed.
	prefixes []prefixMove
	pieces   []portPiece
	// flips maps a table of new to a temporary identity. Some endpoints move to that table while others
	// keep it; the former use the temporary identity during the change.
	flips map[model.TableID]model.TableID
}

// portPiece is a range of ports that no bound of either State divides.
type portPiece struct {
	protocol    model.Protocol
	first, last int
	move
}

func newMoves() moves {
	return moves{moves: make(map[move]uint32), via: make(map[uint32]move), targets: make(map[uint32]bool)}
}

// findMoves lists the changes of classes.
func (p *planner) findMoves() {
	p.peers, p.ports = newMoves(), newMoves()
	for a := range p.new.Policy.Addresses.Changes(p.old.Policy.Addresses) {
		p.peers.add(uint32(p.old.Policy.Class(a)), uint32(p.new.Policy.Class(a)))
	}
	p.prefixes = prefixMoves(p.old, p.new)
	for _, m := range p.prefixes {
		p.peers.add(m.old, m.new)
	}
	if !slices.Equal(p.old.Policy.Ports, p.new.Policy.Ports) {
		p.pieces = portPieces(p.old, p.new)
	}
	for _, piece := range p.pieces {
		p.ports.add(piece.old, piece.new)
	}
}

// prefixMove is the change of the addresses in a prefix that have neither their own entry nor a longer
// prefix in either State.
type prefixMove struct {
	netip.Prefix
	move
}

// prefixMoves walks the prefixes of both States, which are sorted.
func prefixMoves(old, new *model.State) []prefixMove {
	a, b := old.Policy.Prefixes, new.Policy.Prefixes
	if slices.Equal(a, b) {
		return nil
	}
	var all []prefixMove
	for len(a)+len(b) > 0 {
		order := 0
		switch {
		case len(a) == 0:
			order = 1
		case len(b) == 0:
			order = -1
		default:
			order = model.ComparePrefixes(a[0].Prefix, b[0].Prefix)
		}
		switch {
		case order < 0:
			all = append(all, prefixMove{a[0].Prefix, move{uint32(a[0].Class), uint32(new.Policy.PrefixClass(a[0].Prefix))}})
			a = a[1:]
		case order > 0:
			all = append(all, prefixMove{b[0].Prefix, move{uint32(old.Policy.PrefixClass(b[0].Prefix)), uint32(b[0].Class)}})
			b = b[1:]
		default:
			all = append(all, prefixMove{a[0].Prefix, move{uint32(a[0].Class), uint32(b[0].Class)}})
			a, b = a[1:], b[1:]
		}
	}
	return all
}

// portPieces divides the ports at the bounds of the ranges of both States.
func portPieces(old, new *model.State) []portPiece {
	var pieces []portPiece
	for _, proto := range model.PortProtocols {
		starts := map[int]bool{0: true, 65536: true}
		for _, list := range [][]model.PortRange{old.Policy.Ports, new.Policy.Ports} {
			for _, r := range list {
				if r.Protocol == proto {
					starts[int(r.First)] = true
					starts[int(r.Last)+1] = true
				}
			}
		}
		bounds := slices.Sorted(maps.Keys(starts))
		for i := 0; i+1 < len(bounds); i++ {
			port := uint16(bounds[i])
			pieces = append(pieces, portPiece{proto, bounds[i], bounds[i+1] - 1,
				move{uint32(old.Policy.PortClass(proto, port)), uint32(new.Policy.PortClass(proto, port))}})
		}
	}
	return pieces
}

// tablesChange reports whether an endpoint of both States changes its table.
func (p *planner) tablesChange() bool {
	for id, e := range p.new.Policy.Endpoints {
		if was, ok := p.old.Policy.Endpoints[id]; ok && was.Table != e.Table {
			return true
		}
	}
	return false
}

// choosePortVia chooses the intermediate number of each change of a port class.
func (p *planner) choosePortVia() {
	used := map[uint32]bool{uint32(model.OtherPorts): true}
	before := make(map[uint32]bool)
	for _, c := range p.old.Policy.PortClasses {
		before[uint32(c.Class)] = true
		used[uint32(c.Class)] = true
	}
	for _, c := range p.new.Policy.PortClasses {
		used[uint32(c.Class)] = true
	}
	sources := countSources(p.ports.moves)
	free := uint32(1)
	for _, m := range sortedMoves(p.ports.moves) {
		if !before[m.new] && sources[m.new] == 1 {
			p.ports.route(m, m.new)
			continue
		}
		for used[free] && free < model.MaxPortClasses-1 {
			free++
		}
		// If all are in use, the last class is the intermediate one, which every row denies. Those ports
		// are closed for the moment of the change.
		used[free] = true
		p.ports.route(m, free)
	}
}

// choosePeerVia chooses the intermediate number of each change of a peer class. A fresh number needs none,
// unless a port class takes over a number that another class had. A table that stays would then have to give
// that number two meanings: the old one while addresses move to the fresh number, and the new one once ports
// have moved to theirs.
func (p *planner) choosePeerVia() {
	next := max(p.old.Policy.NextPeerClass, p.new.Policy.NextPeerClass)
	before := make(map[uint32]bool)
	for _, c := range p.old.Policy.PeerClasses {
		before[uint32(c.Class)] = true
	}
	sources := countSources(p.peers.moves)
	for _, m := range sortedMoves(p.peers.moves) {
		if !before[m.new] && sources[m.new] == 1 && len(p.ports.targets) == 0 {
			p.peers.route(m, m.new)
			continue
		}
		p.peers.route(m, uint32(next))
		next++
	}
	final := *p.new
	final.Policy.NextPeerClass = next
	p.new = &final
}

func countSources(moves map[move]uint32) map[uint32]int {
	n := make(map[uint32]int)
	for m := range moves {
		n[m.new]++
	}
	return n
}

func sortedMoves(moves map[move]uint32) []move {
	return slices.SortedFunc(maps.Keys(moves), func(a, b move) int {
		return cmp.Or(cmp.Compare(a.old, b.old), cmp.Compare(a.new, b.new))
	})
}

// replaceShared finds the tables that some endpoints move to while other endpoints keep them. During the
// change the former use a copy with all new decisions.
func (p *planner) replaceShared() {
	p.flips = make(map[model.TableID]model.TableID)
	for id, e := range p.new.Policy.Endpoints {
		was, ok := p.old.Policy.Endpoints[id]
		if ok && was.Table != e.Table && p.old.Policy.Tables[e.Table] != nil && p.flips[e.Table] == (model.TableID{}) {
			p.flips[e.Table] = successor(e.Table, p.old, p.new)
		}
	}
}
