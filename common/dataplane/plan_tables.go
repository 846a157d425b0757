// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"github.com/isthmus-net/isthmus/common/model"
)

// tables returns every table of both States with rows and cells for the
// classes that stand in. Tables that go say what they said, tables that come
// say what they will. A table that stays keeps saying what it said of classes
// on their way, and says what it will of a class that is the end of a way.
func (p *planner) tables() map[model.TableID]*model.Table {
	b := newTableBuilder(p)
	all := make(map[model.TableID]*model.Table)
	for id, was := range p.old.Tables {
		is, stays := p.new.Tables[id]
		if !stays {
			all[id] = b.table(id, was, nil)
			continue
		}
		all[id] = b.table(id, was, is)
		if copied := p.flips[id]; copied != (model.TableID{}) {
			all[copied] = b.table(copied, nil, is)
		}
	}
	for id, is := range p.new.Tables {
		if p.old.Tables[id] == nil {
			all[id] = b.table(id, nil, is)
		}
	}
	return all
}

// tableBuilder makes the tables of an intermediate State, sharing rows
// wherever nothing has to be added to them.
type tableBuilder struct {
	*planner
	before, after known
	peers         []model.PeerClassInfo
	width         int
	rows          map[rowKey]*model.Row
}

// known are the numbers that a State uses.
type known struct{ peers, ports map[uint32]bool }

func numbers(s *model.State) known {
	k := known{peers: make(map[uint32]bool), ports: make(map[uint32]bool)}
	for _, c := range s.PeerClasses {
		k.peers[uint32(c.Class)] = true
	}
	for _, c := range s.PortClasses {
		k.ports[uint32(c.Class)] = true
	}
	return k
}

// rowKey is what the cells of an intermediate row come from. Either row may be
// nil. target tells that the class is the end of a way.
type rowKey struct {
	was, is *model.Row
	target  bool
}

func newTableBuilder(p *planner) *tableBuilder {
	b := &tableBuilder{planner: p, before: numbers(p.old), after: numbers(p.new), rows: make(map[rowKey]*model.Row)}
	peers, ports := p.classes()
	b.peers = peers
	for _, i := range ports {
		b.width = max(b.width, int(i.Class)+1)
	}
	return b
}

// table joins the rows of a table in the old State, in the new one, or both.
func (b *tableBuilder) table(id model.TableID, was, is *model.Table) *model.Table {
	t := &model.Table{ID: id}
	for _, d := range model.Directions {
		base := was
		if base == nil {
			base = is
		}
		v, _ := base.Sides[d].Default.Uniform()
		t.Sides[d] = model.Side{Default: uniform(v, b.width), Rows: make(map[model.PeerClass]*model.Row)}
		for _, info := range b.peers {
			key := b.sources(was, is, d, uint32(info.Class))
			if b.isDefault(key, was, is, d, v) {
				continue
			}
			if b.rows[key] == nil {
				b.rows[key] = b.row(key)
			}
			t.Sides[d].Rows[info.Class] = b.rows[key]
		}
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

// sources finds the rows that a class stands for in the old and the new State.
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

// isDefault reports whether the row says v of everything, or is never asked.
func (b *tableBuilder) isDefault(key rowKey, was, is *model.Table, d model.Direction, v model.Verdict) bool {
	plain := func(r *model.Row, t *model.Table) bool {
		if r == nil {
			return true
		}
		if r != t.Sides[d].Default {
			return false
		}
		u, _ := r.Uniform()
		return u == v
	}
	return plain(key.was, was) && plain(key.is, is)
}

// row builds the cells of an intermediate row.
func (b *tableBuilder) row(key rowKey) *model.Row {
	if len(b.planner.ports.moves) == 0 {
		// No cell is missing: where both States know the row they agree, or the
		// class is on its way and still means the old one.
		if key.was != nil {
			return key.was
		}
		return key.is
	}
	r := &model.Row{Cells: make([]model.Decision, b.width)}
	for n := range r.Cells {
		r.Cells[n] = b.cell(key, uint32(n))
	}
	return r
}

// cell is the decision for one class of ports. What neither State knows is
// never asked, and denied.
func (b *tableBuilder) cell(key rowKey, port uint32) model.Decision {
	if port == model.MaxPortClasses-1 {
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
