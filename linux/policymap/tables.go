// SPDX-License-Identifier: Apache-2.0

package policymap

import (
	"slices"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// encodeRow packs the verdicts of a row: bit n is that of port class n, in use or not.
func encodeRow(r *model.Row) bpfobj.PodRow {
	var bits bpfobj.PodRow
	if r.Cell(model.OtherPorts).Verdict == model.Allow {
		for i := range bits.Allow {
			bits.Allow[i] = ^uint64(0)
		}
		bits.Allow[model.ClosedPorts/64] &^= 1 << (model.ClosedPorts % 64)
	}
	for n, c := range r.Cells {
		bits.Allow[n/64] &^= 1 << (n % 64)
		if c.Verdict == model.Allow {
			bits.Allow[n/64] |= 1 << (n % 64)
		}
	}
	return bits
}

// advanceTables writes the rows of tables that are new or changed. It returns the tables in
// force whose verdict on a class has changed.
func (l *Layout) advanceTables(to *model.State, w *Writes, now time.Time) map[model.TableID]bool {
	changed := make(map[model.TableID]bool)
	e := encoder{Layout: l, writes: w, now: now, cache: make(map[*model.Row]uint32)}
	fresh := missing(l.state.Policy.PeerClasses, to.Policy.PeerClasses)
	all := make([]model.PeerClass, len(to.Policy.PeerClasses))
	for i, info := range to.Policy.PeerClasses {
		all[i] = info.Class
	}
	for _, id := range sortedTables(to.Policy.Tables) {
		t := to.Policy.Tables[id]
		number, known := l.tables[id]
		if !known {
			number = l.newTable(t)
			l.tables[id] = number
			w.Tables = append(w.Tables, TableWrite{number, id})
		}
		for _, d := range model.Directions {
			classes := fresh
			if was := l.state.Policy.Tables[id]; was != t {
				var side *model.Side
				if known && was != nil {
					side = &was.Sides[d]
				}
				classes = changedClasses(side, &t.Sides[d], all, fresh)
			}
			if e.side(number, d, &t.Sides[d], classes) && known {
				changed[id] = true
			}
		}
	}
	return changed
}

// missing lists the classes that are only in the second list; both are sorted.
func missing(from, in []model.PeerClassInfo) []model.PeerClass {
	if len(from) == len(in) && len(in) > 0 && &from[0] == &in[0] {
		return nil
	}
	var found []model.PeerClass
	for _, info := range in {
		for len(from) > 0 && from[0].Class < info.Class {
			from = from[1:]
		}
		if len(from) == 0 || from[0].Class != info.Class {
			found = append(found, info.Class)
		}
	}
	return found
}

func sortedTables(m map[model.TableID]*model.Table) []model.TableID {
	ids := make([]model.TableID, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b model.TableID) int { return slices.Compare(a[:], b[:]) })
	return ids
}

// newTable finds a number whose lowest bits are the verdicts of the classes that the table does
// not list. They stay unchanged while the number is in use.
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

// side writes the verdicts of one direction of a table on some classes, and reports whether a
// verdict on one changed.
func (e *encoder) side(number uint32, d model.Direction, s *model.Side, classes []model.PeerClass) bool {
	unlisted := uint32(number >> d & 1)
	changed := false
	for _, class := range classes {
		peer := PeerKey(class, d)
		was, has := e.Verdicts[number][peer]
		row := e.row(s.Row(class))
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

// changedClasses lists, by number, the classes on which the verdict of a side may have changed,
// other than new ones.
func changedClasses(was, is *model.Side, all, fresh []model.PeerClass) []model.PeerClass {
	if was == nil || was.Default != is.Default {
		return all
	}
	changed := slices.Clone(fresh)
	for c := range is.Rows.Changes(was.Rows) {
		if _, ok := slices.BinarySearch(all, c); ok {
			changed = append(changed, c)
		}
	}
	slices.Sort(changed)
	return slices.Compact(changed)
}

// row returns the number of a row, and writes it if no table uses it yet.
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

// release records that entries which referred to rows are gone. A row without references is
// free after the grace period.
func (l *Layout) release(now time.Time) {
	slices.Sort(l.pending) // keeps the order of reuse deterministic
	for _, row := range l.pending {
		if row <= RowAllow {
			continue
		}
		if l.uses[row]--; l.uses[row] > 0 {
			continue
		}
		delete(l.uses, row)
		if _, ok := l.Rows[row]; !ok {
			continue // a verdict of another process referred to it
		}
		delete(l.rows, l.Rows[row])
		delete(l.Rows, row)
		l.freed = append(l.freed, freedRow{row, now})
	}
	l.pending = nil
}

// collect removes entries that no endpoint and no class can reach any more.
func (l *Layout) collect(to *model.State, w *Writes) {
	dead := missing(to.Policy.PeerClasses, l.state.Policy.PeerClasses)
	drop := func(number, peer uint32) {
		row, ok := l.Verdicts[number][peer]
		if !ok {
			return
		}
		w.DropVerdicts = append(w.DropVerdicts, VerdictKey{number, peer})
		l.pending = append(l.pending, row)
		l.verdicts--
	}
	for id, number := range l.tables {
		if _, stays := to.Policy.Tables[id]; stays {
			for _, c := range dead {
				for _, d := range model.Directions {
					drop(number, PeerKey(c, d))
				}
			}
			continue
		}
		for peer := range l.Verdicts[number] {
			drop(number, peer)
		}
		w.DropTables = append(w.DropTables, number)
		delete(l.tables, id)
	}
	w.DropVerdicts, w.DropTables = append(w.DropVerdicts, l.garbage...), append(w.DropTables, l.strays...)
	l.garbage, l.strays = nil, nil
	slices.SortFunc(w.DropVerdicts, compareVerdictKeys)
	slices.Sort(w.DropTables)
}

func compareVerdictKeys(a, b VerdictKey) int {
	if a.Table != b.Table {
		return int(a.Table) - int(b.Table)
	}
	return int(a.Peer) - int(b.Peer)
}
