// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

// tables returns every table of both States with rows and cells for the intermediate classes. Tables of old
// only keep their decisions; tables of new only have theirs. A table of both keeps its old decisions for
// classes that are being moved, and has the new ones for classes that are the target of a move.
func (p *planner) tables() map[model.TableID]*model.Table {
	b := newTableBuilder(p)
	all := make(map[model.TableID]*model.Table)
	for id, was := range p.old.Policy.Tables {
		is, stays := p.new.Policy.Tables[id]
		if !stays {
			all[id] = b.table(id, was, nil)
			continue
		}
		all[id] = b.table(id, was, is)
		if copied := p.flips[id]; copied != (model.TableID{}) {
			all[copied] = b.table(copied, nil, is)
		}
	}
	for id, is := range p.new.Policy.Tables {
		if p.old.Policy.Tables[id] == nil {
			all[id] = b.table(id, nil, is)
		}
	}
	return all
}

// tableBuilder builds the tables of an intermediate State. It shares unchanged rows.
type tableBuilder struct {
	*planner
	before, after known
	peers         []model.PeerClassInfo
	ports         []model.PortClassInfo
	fresh         []uint32 // classes of the new State only
	width         int
	rows          map[rowKey]*model.Row
}

// known are the numbers that a State uses.
type known struct{ peers, ports map[uint32]bool }

func numbers(s *model.State) known {
	k := known{peers: make(map[uint32]bool), ports: make(map[uint32]bool)}
	for _, c := range s.Policy.PeerClasses {
		k.peers[uint32(c.Class)] = true
	}
	for _, c := range s.Policy.PortClasses {
		k.ports[uint32(c.Class)] = true
	}
	return k
}

// rowKey is the source of the cells of an intermediate row. Either row may be nil. target is true if the
// class is the target of a move.
type rowKey struct {
	was, is *model.Row
	target  bool
}

func newTableBuilder(p *planner) *tableBuilder {
	b := &tableBuilder{planner: p, before: numbers(p.old), after: numbers(p.new), rows: make(map[rowKey]*model.Row)}
	peers, ports := p.classes()
	b.peers, b.ports = peers, ports
	for _, i := range ports {
		b.width = max(b.width, int(i.Class)+1)
	}
	for class := range b.after.peers {
		if !b.before.peers[class] {
			b.fresh = append(b.fresh, class)
		}
	}
	return b
}

// table joins the rows of a table in the old State, in the new one, or both.
func (b *tableBuilder) table(id model.TableID, was, is *model.Table) *model.Table {
	if was != nil && is != nil && was != is && len(b.planner.ports.moves) > 0 {
		return b.joined(id, was, is)
	}
	base := was
	if base == nil {
		base = is
	}
	t := &model.Table{ID: id}
	for _, d := range model.Directions {
		t.Sides[d] = b.side(was, is, d)
	}
	if t.ID == base.ID && t.Sides == base.Sides {
		return base
	}
	return t
}

// side takes the rows of the table in one State and adapts those that an intermediate State needs
// differently.
func (b *tableBuilder) side(was, is *model.Table, d model.Direction) model.Side {
	base := was
	if base == nil {
		base = is
	}
	key := func(r *model.Row) rowKey {
		var k rowKey
		if was != nil {
			k.was = r
		}
		if is != nil {
			k.is = r
		}
		return k
	}
	side := base.Sides[d]
	side.Default = b.adapted(key(side.Default))
	if len(b.planner.ports.moves) > 0 {
		for class, r := range base.Sides[d].Rows.All() {
			side.Rows = side.Rows.With(class, b.adapted(key(r)))
		}
	}
	set := func(class uint32) {
		if r := b.adapted(b.sources(was, is, d, class)); r != nil && r != side.Row(model.PeerClass(class)) {
			side.Rows = side.Rows.With(model.PeerClass(class), r)
		}
	}
	for via := range b.planner.peers.via {
		set(via)
	}
	for target := range b.planner.peers.targets {
		set(target)
	}
	if was != is {
		for _, class := range b.fresh {
			set(class)
		}
	}
	return side
}

// joined builds a table whose rows come from different rows of both States, while ports move.
func (b *tableBuilder) joined(id model.TableID, was, is *model.Table) *model.Table {
	t := &model.Table{ID: id}
	for _, d := range model.Directions {
		v, _ := was.Sides[d].Default.Uniform()
		rows := make(map[model.PeerClass]*model.Row)
		for _, info := range b.peers {
			key := b.sources(was, is, d, uint32(info.Class))
			if b.isDefault(key, was, is, d, v) {
				continue
			}
			if r := b.adapted(key); r != nil {
				rows[info.Class] = r
			}
		}
		t.Sides[d] = model.Side{Default: uniform(v, b.width), Rows: immutable.MakeMap(rows)}
	}
	return t
}

func uniform(v model.Verdict, width int) *model.Row {
	r := &model.Row{Cells: make([]model.Decision, max(width, 1))}
	for i := range r.Cells {
		r.Cells[i].Verdict = v
	}
	return r
}

// sources returns the rows of a class in the old and the new State.
func (b *tableBuilder) sources(was, is *model.Table, d model.Direction, class uint32) rowKey {
	from, to := class, class
	if m, ok := b.planner.peers.via[class]; ok {
		from, to = m.old, m.new
	}
	var key rowKey
	if was != nil && b.before.peers[from] {
		key.was = was.Sides[d].Row(model.PeerClass(from))
	}
	if is != nil && b.after.peers[to] {
		key.is = is.Sides[d].Row(model.PeerClass(to))
	}
	if was != nil && is != nil {
		key.target = b.planner.peers.targets[class]
	}
	return key
}

// isDefault reports whether the row has verdict v for everything, or is never used.
func (b *tableBuilder) isDefault(key rowKey, was, is *model.Table, d model.Direction, v model.Verdict) bool {
	plain := func(r *model.Row, t *model.Table) bool {
		if r == nil {
			return true
		}
		if r != t.Sides[d].Default {
			return false
		}
		u, ok := r.Uniform()
		return ok && u == v
	}
	return plain(key.was, was) && plain(key.is, is)
}

// adapted returns the row of an intermediate State. It returns a source row if that has the same decision
// for every port, or nil without source rows.
func (b *tableBuilder) adapted(key rowKey) *model.Row {
	r := key.was
	if r == nil {
		r = key.is
	}
	if len(b.planner.ports.moves) == 0 || r == nil {
		// No cell is missing. Where both States know the row they agree. Otherwise the class is being moved
		// and still means the old one.
		return r
	}
	if made, ok := b.rows[key]; ok {
		return made
	}
	if slices.ContainsFunc(b.ports, func(i model.PortClassInfo) bool {
		return b.cell(key, uint32(i.Class)).Verdict != r.Cell(i.Class).Verdict
	}) {
		r = &model.Row{Cells: make([]model.Decision, b.width)}
		for n := range r.Cells {
			r.Cells[n] = b.cell(key, uint32(n))
		}
	}
	b.rows[key] = r
	return r
}

// cell returns the decision for one port class. A cell that neither State knows is never used, and denied.
func (b *tableBuilder) cell(key rowKey, port uint32) model.Decision {
	if port == uint32(model.ClosedPorts) {
		return model.Decision{}
	}
	from, to := port, port
	m, onWay := b.planner.ports.via[port]
	if onWay {
		from, to = m.old, m.new
	}
	asWas := key.was != nil && b.before.ports[from]
	willBe := key.is != nil && b.after.ports[to]
	switch {
	case willBe && (!asWas || key.target && onWay):
		return key.is.Cell(model.PortClass(to))
	case asWas:
		return key.was.Cell(model.PortClass(from))
	}
	return model.Decision{}
}
