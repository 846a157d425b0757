// SPDX-License-Identifier: Apache-2.0

package policymap

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// Decode interprets the entries of current maps. slots holds the slot of each endpoint. The
// State of Layout.State has the causes that the maps name, and classes without terms. Decode returns
// invalid entries, for example after interrupted writes, as problems. It treats them as absent,
// and the next Advance repairs them.
func Decode(e *Entries, slots map[model.EndpointID]uint32, c Capacity) (l *Layout, problems []string) {
	l = NewLayout(c)
	l.Entries, l.unsure = e, true
	l.slots = maps.Clone(slots)
	problems = append(l.numberTables(), l.numberEpochs()...)
	for n, s := range e.Slots {
		table := TableNumber(s.Table)
		if number, ok := l.tables[e.Tables[table]]; table != DenyAll && (!ok || number != table) {
			problems = append(problems, fmt.Sprintf("slot %d refers to table %d, which is not in the map tables", n, table))
		}
	}
	s := &model.State{
		Policy: model.PolicyState{Endpoints: make(map[model.EndpointID]model.EndpointState),
			Tables: make(map[model.TableID]*model.Table)},
	}
	for a := range e.Peers {
		l.peers[family(a)]++
	}
	for n, bits := range e.Rows {
		l.nextRow = max(l.nextRow, n+1)
		l.rows[bits] = n
	}
	d := decoder{Layout: l, state: s, classes: map[model.PeerClass]bool{model.World: true}, rows: make(map[VerdictRow]*model.Row)}
	problems = append(problems, d.numberCauses()...)
	d.addresses()
	problems = append(problems, d.ports()...)
	problems = append(problems, d.readTables()...)
	for id, n := range l.slots {
		inSlot := e.Slots[n].Table
		table := TableNumber(inSlot)
		if t, ok := e.Tables[table]; ok && l.tables[t] == table {
			s.Policy.Endpoints[id] = model.EndpointState{Table: t, Observed: inSlot != table}
		}
	}
	for c := range d.classes {
		s.Policy.PeerClasses = append(s.Policy.PeerClasses, model.PeerClassInfo{Class: c})
		if c < maxPeerClass {
			s.Policy.NextPeerClass = max(s.Policy.NextPeerClass, c+1)
		}
	}
	slices.Sort(problems)
	slices.SortFunc(s.Policy.PeerClasses, func(a, b model.PeerClassInfo) int { return cmp.Compare(a.Class, b.Class) })
	l.state = s
	return l, problems
}

// Greater numbers are damage: no agent reaches them, and counting on from them would overflow.
const (
	maxTable     = 1 << 28 // of a table, without the bits for defaults and flags
	maxEpoch     = 1 << 31
	maxPeerClass = 1 << 30
)

// skippedEpochs is the number of epochs to skip if some were damaged, because the greatest
// epoch of a flow may be among them.
const skippedEpochs = 1 << 16

// numberTables records the number of each table. Table DenyAll has no identity; of two tables
// with one identity, the first counts.
func (l *Layout) numberTables() (problems []string) {
	seen := func(number uint32) {
		if number>>2 < maxTable {
			l.next = max(l.next, number>>2+1)
		}
	}
	for _, number := range slices.Sorted(maps.Keys(l.Tables)) {
		seen(number)
		_, twice := l.tables[l.Tables[number]]
		if number>>2 == DenyAll || number>>2 >= maxTable || twice {
			l.strays = append(l.strays, number)
			problems = append(problems, fmt.Sprintf("tables has an entry for table %d, which no agent writes", number))
			continue
		}
		l.tables[l.Tables[number]] = number
	}
	for number := range l.Verdicts { // includes tables that are gone
		seen(number)
	}
	for _, s := range l.Slots {
		seen(TableNumber(s.Table))
	}
	return problems
}

// numberEpochs finds the first epoch that no flow can have.
func (l *Layout) numberEpochs() (problems []string) {
	for n, s := range l.Slots {
		if s.Epoch >= maxEpoch || s.Epoch == 0 {
			problems = append(problems, fmt.Sprintf("slot %d has epoch %d, which no agent writes", n, s.Epoch))
			continue
		}
		l.epoch = max(l.epoch, s.Epoch)
	}
	if len(problems) > 0 {
		l.epoch += skippedEpochs
	}
	return problems
}

type decoder struct {
	*Layout
	state   *model.State
	classes map[model.PeerClass]bool
	width   int // of rows
	rows    map[VerdictRow]*model.Row
	meaning map[uint32]model.Decision // of the numbers of causes
}

func (d *decoder) addresses() {
	all := make(map[netip.Addr]model.PeerClass, len(d.Peers))
	for a, c := range d.Peers {
		all[a] = model.PeerClass(c)
		d.classes[model.PeerClass(c)] = true
	}
	d.state.Policy.Addresses = immutable.MakeMap(all)
	for p, c := range d.Prefixes {
		class := model.PeerClass(c &^ bpfobj.PeerPod) // programs ignore the bit
		d.state.Policy.Prefixes = append(d.state.Policy.Prefixes, model.PrefixClass{Prefix: p, Class: class})
		d.classes[class] = true
	}
	slices.SortFunc(d.state.Policy.Prefixes, func(a, b model.PrefixClass) int { return model.ComparePrefixes(a.Prefix, b.Prefix) })
}

// ports decodes the classes of ports. A class without a bit in rows counts as closed.
func (d *decoder) ports() (problems []string) {
	used := map[uint16]bool{uint16(model.OtherPorts): true}
	for i := 0; i < Ports; {
		class := d.Ports[i]
		n := 1
		for (i+n)%65536 != 0 && d.Ports[i+n] == class {
			n++
		}
		if class >= model.MaxPortClasses {
			problems = append(problems, fmt.Sprintf("entry %d of ports has class %d, classes go to %d", i, class, model.MaxPortClasses-1))
			class = uint16(model.ClosedPorts)
		}
		used[class] = true
		if class != uint16(model.OtherPorts) {
			d.state.Policy.Ports = append(d.state.Policy.Ports, model.PortRange{Protocol: model.PortProtocols[i/65536],
				First: uint16(i % 65536), Last: uint16((i + n - 1) % 65536), Class: model.PortClass(class)})
		}
		i += n
	}
	for c := range used {
		d.state.Policy.PortClasses = append(d.state.Policy.PortClasses, model.PortClassInfo{Class: model.PortClass(c)})
		d.width = max(d.width, int(c)+1)
	}
	slices.SortFunc(d.state.Policy.PortClasses, func(a, b model.PortClassInfo) int { return cmp.Compare(a.Class, b.Class) })
	slices.SortFunc(d.state.Policy.Ports, func(a, b model.PortRange) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First))
	})
	return problems
}

func (d *decoder) readTables() (problems []string) {
	for id, number := range d.tables {
		t := &model.Table{ID: id}
		for _, dir := range model.Directions {
			v := d.Unlisted(number, dir)
			t.Sides[dir].Default, _ = d.row(v) // needs no entry of rows
		}
		if d.Defaults[PlaceOfTable(number)].Table == number {
			d.places[PlaceOfTable(number)] = number
			for _, dir := range model.Directions {
				d.use(d.Unlisted(number, dir).Causes)
			}
		}
		d.state.Policy.Tables[id] = t
	}
	for number, entries := range d.Verdicts {
		id, ok := d.Tables[number]
		if !ok || d.tables[id] != number {
			problems = append(problems, fmt.Sprintf("verdicts has rows of table %d, which is not in the map tables", number))
			for peer := range entries {
				d.garbage = append(d.garbage, VerdictKey{number, peer})
			}
			continue
		}
		rows := [2]map[model.PeerClass]*model.Row{{}, {}}
		for peer, n := range entries {
			r, err := d.row(n)
			if err != nil {
				problems = append(problems, fmt.Sprintf("table %d, class %d: %v", number, peer/2, err))
			}
			class := model.PeerClass(peer / 2)
			rows[peer%2][class] = r
			d.classes[class] = true
			d.uses[n.Row]++
			d.use(n.Causes)
			d.verdicts++
		}
		for _, dir := range model.Directions {
			d.state.Policy.Tables[id].Sides[dir].Rows = immutable.MakeMap(rows[dir])
		}
	}
	return problems
}

// row decodes a row; a missing row denies, as in the programs.
func (d *decoder) row(v VerdictRow) (*model.Row, error) {
	if r, ok := d.rows[v]; ok {
		return r, nil
	}
	r := &model.Row{Cells: make([]model.Decision, d.width)}
	d.rows[v] = r
	bits, ok := d.Rows[v.Row]
	if v.Row > RowAllow && !ok {
		return r, fmt.Errorf("row %d is not in the map rows", v.Row)
	}
	for i := range r.Cells {
		verdict := model.Verdict(v.Row)
		if v.Row > RowAllow {
			verdict = model.Verdict(bits.Allow[i/64] >> (i % 64) & 1)
		}
		r.Cells[i].Verdict = verdict
		n := v.Causes
		if n&bpfobj.CausesByPort != 0 {
			n = d.CauseOfClass(n, uint32(i))
		}
		if c := d.meaning[n]; c.Verdict == verdict {
			r.Cells[i].Cause = c.Cause
		}
	}
	return r, nil
}

// UsedRows returns the rows that verdicts refer to. The map rows is an array, so it does not
// show which entries are in use. read reports false for a row outside the array, to which
// damaged verdicts may refer.
func UsedRows(verdicts map[uint32]map[uint32]VerdictRow, read func(uint32) (bpfobj.PodRow, bool)) map[uint32]bpfobj.PodRow {
	used := make(map[uint32]bpfobj.PodRow)
	for _, entries := range verdicts {
		for _, v := range entries {
			n := v.Row
			if _, ok := used[n]; ok || n <= RowAllow {
				continue
			}
			if r, ok := read(n); ok {
				used[n] = r
			}
		}
	}
	return used
}
