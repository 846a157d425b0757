// SPDX-License-Identifier: Apache-2.0

package policymap

import (
	"slices"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// encodeRow packs the verdicts of a row: bit n is that of port class n.
func encodeRow(r *model.Row) bpfobj.PodRow {
	var bits bpfobj.PodRow
	for n, c := range r.Cells {
		if c.Verdict == model.Allow {
			bits.Allow[n/64] |= 1 << (n % 64)
		}
	}
	return bits
}

// advanceTables writes the rows of tables that are new or changed, and returns
// the tables that were in force and now say something else of some class.
func (l *Layout) advanceTables(to *model.State, w *Writes, now time.Time) map[model.TableID]bool {
	changed := make(map[model.TableID]bool)
	e := encoder{Layout: l, writes: w, now: now, cache: make(map[*model.Row]uint32)}
	for _, id := range sortedTables(to.Tables) {
		t := to.Tables[id]
		number, known := l.tables[id]
		if known && l.state.Tables[id] == t {
			continue
		}
		if !known {
			number = l.newTable(t)
			l.tables[id] = number
			w.Tables = append(w.Tables, TableWrite{number, id})
		}
		for _, d := range model.Directions {
			if e.side(number, d, &t.Sides[d], to.PeerClasses) && known {
				changed[id] = true
			}
		}
	}
	return changed
}

func sortedTables(m map[model.TableID]*model.Table) []model.TableID {
	ids := make([]model.TableID, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b model.TableID) int { return slices.Compare(a[:], b[:]) })
	return ids
}

// newTable finds a number whose lowest bits are the verdicts of the classes
// that the table does not list. They stay what they are while the number is in
// use.
func (l *Layout) newTable(t *model.Table) uint32 {
	number := l.next << 2
	l.next++
	for _, d := range model.Directions {
		if v, _ := t.Sides[d].Default.Uniform(); v == model.Allow {
			number |= 1 << d
		}
	}
	return number
}

// encoder writes rows.
type encoder struct {
	*Layout
	writes *Writes
	now    time.Time
	cache  map[*model.Row]uint32
}

// side writes what one direction of a table says of each class, and reports
// whether it said something else of one before.
func (e *encoder) side(number uint32, d model.Direction, s *model.Side, classes []model.PeerClassInfo) bool {
	unlisted := uint32(number >> d & 1)
	def, _ := s.Default.Uniform()
	changed := false
	for _, info := range classes {
		r, listed := s.Rows[info.Class]
		if !listed {
			r = s.Default
		}
		peer := PeerKey(info.Class, d)
		was, has := e.Verdicts[number][peer]
		if !listed && !has && uint32(def) == unlisted {
			continue
		}
		row := e.row(r)
		switch {
		case row == unlisted && has:
			e.writes.Unlist = append(e.writes.Unlist, VerdictKey{number, peer})
			e.pending = append(e.pending, was)
			e.verdicts--
			changed = true
		case row != unlisted && (!has || was != row):
			e.writes.Verdicts = append(e.writes.Verdicts, VerdictWrite{VerdictKey{number, peer}, row})
			e.uses[row]++
			if has {
				e.pending = append(e.pending, was)
			} else {
				e.verdicts++
			}
			changed = changed || has
		}
	}
	return changed
}

// row returns the number of a row, after writing it if no table has it yet.
func (e *encoder) row(r *model.Row) uint32 {
	if n, ok := e.cache[r]; ok {
		return n
	}
	n := e.rowNumber(r)
	e.cache[r] = n
	return n
}

func (e *encoder) rowNumber(r *model.Row) uint32 {
	if v, ok := r.Uniform(); ok {
		return uint32(v)
	}
	bits := encodeRow(r)
	if n, ok := e.rows[bits]; ok {
		return n
	}
	n := e.nextRow
	if len(e.freed) > 0 && e.now.Sub(e.freed[0].at) >= Grace {
		n = e.freed[0].index
		e.freed = e.freed[1:]
	} else {
		e.nextRow++
	}
	e.rows[bits] = n
	e.writes.Rows = append(e.writes.Rows, RowWrite{n, bits})
	return n
}

// release notes that entries which referred to rows are gone. A row that
// nothing refers to any more is free after the grace period.
func (l *Layout) release(now time.Time) {
	for _, row := range l.pending {
		if row <= RowAllow {
			continue
		}
		if l.uses[row]--; l.uses[row] > 0 {
			continue
		}
		delete(l.uses, row)
		delete(l.rows, l.Rows[row])
		delete(l.Rows, row)
		l.freed = append(l.freed, freedRow{row, now})
	}
	l.pending = nil
}

// fitTables counts the entries that tables need beside those in the maps:
// tables that go and tables that come are there together for a while.
func (l *Layout) fitTables(to *model.State, now time.Time) error {
	tables, entries := len(l.tables), l.verdicts
	seen := make(map[*model.Row]bool)
	fresh := make(map[bpfobj.PodRow]bool)
	for id, t := range to.Tables {
		if l.state.Tables[id] == t {
			continue
		}
		number, known := l.tables[id]
		if !known {
			tables++
		}
		for _, d := range model.Directions {
			side := &t.Sides[d]
			entries += len(side.Rows)
			if def, _ := side.Default.Uniform(); known && uint32(def) != number>>d&1 {
				entries += len(to.PeerClasses)
			}
			for _, r := range side.Rows {
				if _, uniform := r.Uniform(); !uniform && !seen[r] {
					if bits := encodeRow(r); l.rows[bits] == 0 {
						fresh[bits] = true
					}
				}
				seen[r] = true
			}
		}
	}
	free := l.capacity.Rows - int(l.nextRow)
	for _, f := range l.freed {
		if now.Sub(f.at) >= Grace {
			free++
		}
	}
	switch {
	case tables > l.capacity.Tables:
		return &FullError{Map: "tables", Need: tables, Max: l.capacity.Tables}
	case entries > l.capacity.Verdicts:
		return &FullError{Map: "verdicts", Need: entries, Max: l.capacity.Verdicts}
	case len(fresh) > free:
		return &FullError{Map: "rows", Need: l.capacity.Rows + len(fresh) - free, Max: l.capacity.Rows}
	}
	return nil
}

// collect removes what no endpoint and no class can reach any more.
func (l *Layout) collect(to *model.State, w *Writes) {
	live := make(map[uint32]bool, len(to.PeerClasses))
	for _, info := range to.PeerClasses {
		live[uint32(info.Class)] = true
	}
	shrunk := len(to.PeerClasses) != len(l.state.PeerClasses) ||
		!slices.EqualFunc(to.PeerClasses, l.state.PeerClasses, func(a, b model.PeerClassInfo) bool { return a.Class == b.Class })
	for id, number := range l.tables {
		t, stays := to.Tables[id]
		if stays && !shrunk && l.state.Tables[id] == t {
			continue
		}
		for peer, row := range l.Verdicts[number] {
			if !stays || !live[peer/2] {
				w.DropVerdicts = append(w.DropVerdicts, VerdictKey{number, peer})
				l.pending = append(l.pending, row)
				l.verdicts--
			}
		}
		if !stays {
			w.DropTables = append(w.DropTables, number)
			delete(l.tables, id)
		}
	}
	w.DropVerdicts = append(w.DropVerdicts, l.garbage...)
	l.garbage = nil
	slices.SortFunc(w.DropVerdicts, compareVerdictKeys)
	slices.Sort(w.DropTables)
}

func compareVerdictKeys(a, b VerdictKey) int {
	if a.Table != b.Table {
		return int(a.Table) - int(b.Table)
	}
	return int(a.Peer) - int(b.Peer)
}
