// SPDX-License-Identifier: Apache-2.0

package policymap

import (
	"cmp"
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
	e := encoder{Layout: l, writes: w, now: now, cache: make(map[*model.Row]VerdictRow), numbered: make(map[causeKey]uint32)}
	l.rest(now)
	fresh := missing(l.state.Policy.PeerClasses, to.Policy.PeerClasses)
	all := make([]model.PeerClass, len(to.Policy.PeerClasses))
	for i, info := range to.Policy.PeerClasses {
		all[i] = info.Class
	}
	for _, id := range sortedTables(to.Policy.Tables) {
		t := to.Policy.Tables[id]
		number, known := l.tables[id]
		if e.renames = !known; !known {
			number = l.newTable(t)
			l.tables[id] = number
			w.Tables = append(w.Tables, TableWrite{number, id})
		}
		if l.state.Policy.Tables[id] != t {
			e.defaults(number, t)
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
	for range bpfobj.TablePlaces { // tables in force have different places
		if _, taken := l.places[l.next%bpfobj.TablePlaces]; !taken {
			break
		}
		l.next++
	}
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
	writes   *Writes
	now      time.Time
	cache    map[*model.Row]VerdictRow
	numbered map[causeKey]uint32
	// renames is true for a new table. Rules that moved to another index make one; older tables, which stay for a
	// while, have the previous index.
	renames bool
}

// causeKey is a decision; its cause has a number.
type causeKey struct {
	*model.Cause
	model.Verdict
}

// defaults writes the causes of the verdicts in the number of a table, if they are known.
func (e *encoder) defaults(number uint32, t *model.Table) {
	place := PlaceOfTable(number)
	if holder, taken := e.places[place]; taken && holder != number {
		return // after damage; nothing is counted by such a default
	}
	e.places[place] = number
	was := e.Defaults[place]
	if was.Table != number {
		was = bpfobj.PodTableCause{Table: number}
		for range model.Directions {
			e.use(bpfobj.CauseNone)
		}
	}
	is := was
	for _, d := range model.Directions {
		r := e.row(t.Sides[d].Default)
		if r.Row != number>>d&1 || r.Causes == bpfobj.CauseNone || r.Causes == was.Causes[d] {
			continue
		}
		is.Causes[d] = r.Causes
		e.use(r.Causes)
		e.pending = append(e.pending, VerdictRow{Causes: was.Causes[d]})
	}
	if is != e.Defaults[place] {
		e.writes.Defaults = append(e.writes.Defaults, is)
		e.Defaults[place] = is
	}
}

// side writes the verdicts of one direction of a table on some classes, and reports whether a
// verdict on one changed.
func (e *encoder) side(number uint32, d model.Direction, s *model.Side, classes []model.PeerClass) bool {
	unlisted := e.Unlisted(number, d)
	changed := false
	for _, class := range classes {
		peer := PeerKey(class, d)
		was, has := e.Verdicts[number][peer]
		row := e.row(s.Row(class))
		if row.Causes == bpfobj.CauseNone { // the State does not know it: no write because of the cause
			if has && was.Row == row.Row {
				row = was
			} else if row.Row == unlisted.Row {
				row = unlisted
			}
		}
		switch {
		case row == unlisted && has:
			e.writes.Unlist = append(e.writes.Unlist, VerdictKey{number, peer})
			e.pending = append(e.pending, was)
			e.verdicts--
			changed = changed || was.Row != row.Row
		case row != unlisted && (!has || was != row):
			e.writes.Verdicts = append(e.writes.Verdicts, VerdictWrite{VerdictKey{number, peer}, row})
			e.uses[row.Row]++
			e.use(row.Causes)
			if has {
				e.pending = append(e.pending, was)
			} else {
				e.verdicts++
			}
			changed = changed || has && was.Row != row.Row
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

// row returns the numbers of a row and of its causes, and writes what no table uses yet.
func (e *encoder) row(r *model.Row) VerdictRow {
	if v, ok := e.cache[r]; ok {
		return v
	}
	v := VerdictRow{Row: e.rowNumber(r), Causes: e.word(r)}
	e.cache[r] = v
	return v
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
	slices.SortFunc(l.pending, func(a, b VerdictRow) int { return cmp.Compare(a.Row, b.Row) }) // keeps the order of reuse deterministic
	for _, gone := range l.pending {
		l.drop(gone.Causes, now)
		row := gone.Row
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
		if l.places[PlaceOfTable(number)] == number {
			delete(l.places, PlaceOfTable(number))
			for _, d := range model.Directions {
				l.pending = append(l.pending, VerdictRow{Causes: l.Unlisted(number, d).Causes})
			}
		}
	}
	w.DropVerdicts, w.DropTables = append(w.DropVerdicts, l.garbage...), append(w.DropTables, l.strays...)
	w.DropCauses = append(w.DropCauses, l.strayCauses...)
	l.garbage, l.strays, l.strayCauses = nil, nil, nil
	slices.SortFunc(w.DropVerdicts, compareVerdictKeys)
	slices.Sort(w.DropTables)
}

func compareVerdictKeys(a, b VerdictKey) int {
	if a.Table != b.Table {
		return int(a.Table) - int(b.Table)
	}
	return int(a.Peer) - int(b.Peer)
}
