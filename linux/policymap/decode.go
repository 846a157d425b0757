// SPDX-License-Identifier: Apache-2.0

package policymap

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// Decode finds out what entries that are in the maps mean. slots names the
// endpoints that own a slot. The State that Layout.State returns has verdicts
// without causes and classes without terms. What cannot be right, after writes
// that were cut short for example, is returned as problems, counts as absent,
// and is put right by the next Advance.
func Decode(e *Entries, slots map[model.EndpointID]uint32, c Capacity) (l *Layout, problems []string) {
	l = NewLayout(c)
	l.Entries = e
	l.slots = maps.Clone(slots)
	for n, s := range e.Slots {
		l.epoch = max(l.epoch, s.Epoch)
		l.next = max(l.next, s.Table>>2+1)
		if _, ok := e.Tables[s.Table]; !ok && s.Table != DenyAll {
			problems = append(problems, fmt.Sprintf("slot %d refers to table %d, which is not in the map tables", n, s.Table))
		}
	}
	s := &model.State{
		Endpoints: make(map[model.EndpointID]model.EndpointState),
		Tables:    make(map[model.TableID]*model.Table),
	}
	for a := range e.Peers {
		l.peers[family(a)]++
	}
	for number, id := range e.Tables {
		l.tables[id] = number
		l.next = max(l.next, number>>2+1)
	}
	for number := range e.Verdicts { // of tables that are gone, too
		l.next = max(l.next, number>>2+1)
	}
	for n, bits := range e.Rows {
		l.nextRow = max(l.nextRow, n+1)
		l.rows[bits] = n
	}
	d := decoder{Layout: l, state: s, classes: map[model.PeerClass]bool{model.World: true}, rows: make(map[uint32]*model.Row)}
	d.addresses()
	d.ports()
	problems = append(problems, d.tables()...)
	for id, n := range l.slots {
		if t, ok := e.Tables[e.Slots[n].Table]; ok {
			s.Endpoints[id] = model.EndpointState{Table: t}
		}
	}
	for c := range d.classes {
		s.PeerClasses = append(s.PeerClasses, model.PeerClassInfo{Class: c})
		s.NextPeerClass = max(s.NextPeerClass, c+1)
	}
	slices.SortFunc(s.PeerClasses, func(a, b model.PeerClassInfo) int { return cmp.Compare(a.Class, b.Class) })
	l.state = s
	return l, problems
}

type decoder struct {
	*Layout
	state   *model.State
	classes map[model.PeerClass]bool
	width   int // of rows
	rows    map[uint32]*model.Row
}

func (d *decoder) addresses() {
	all := make(map[netip.Addr]model.PeerClass, len(d.Peers))
	for a, c := range d.Peers {
		all[a] = model.PeerClass(c)
		d.classes[model.PeerClass(c)] = true
	}
	d.state.Addresses = model.MakeMap(all)
	for p, c := range d.Prefixes {
		d.state.Prefixes = append(d.state.Prefixes, model.PrefixClass{Prefix: p, Class: model.PeerClass(c)})
		d.classes[model.PeerClass(c)] = true
	}
	slices.SortFunc(d.state.Prefixes, func(a, b model.PrefixClass) int { return model.ComparePrefixes(a.Prefix, b.Prefix) })
}

func (d *decoder) ports() {
	used := map[uint16]bool{uint16(model.OtherPorts): true}
	for i := 0; i < Ports; {
		class := d.Ports[i]
		n := 1
		for (i+n)%65536 != 0 && d.Ports[i+n] == class {
			n++
		}
		used[class] = true
		if class != uint16(model.OtherPorts) {
			d.state.Ports = append(d.state.Ports, model.PortRange{Protocol: model.PortProtocols[i/65536],
				First: uint16(i % 65536), Last: uint16((i + n - 1) % 65536), Class: model.PortClass(class)})
		}
		i += n
	}
	for c := range used {
		d.state.PortClasses = append(d.state.PortClasses, model.PortClassInfo{Class: model.PortClass(c)})
		d.width = max(d.width, int(c)+1)
	}
	slices.SortFunc(d.state.PortClasses, func(a, b model.PortClassInfo) int { return cmp.Compare(a.Class, b.Class) })
	slices.SortFunc(d.state.Ports, func(a, b model.PortRange) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First))
	})
}

func (d *decoder) tables() (problems []string) {
	for number, id := range d.Tables {
		t := &model.Table{ID: id}
		for _, dir := range model.Directions {
			t.Sides[dir] = model.Side{Default: d.uniform(model.Verdict(number >> dir & 1))}
		}
		d.state.Tables[id] = t
	}
	for number, entries := range d.Verdicts {
		id, ok := d.Tables[number]
		if !ok {
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
			d.uses[n]++
			d.verdicts++
		}
		for _, dir := range model.Directions {
			d.state.Tables[id].Sides[dir].Rows = model.MakeMap(rows[dir])
		}
	}
	return problems
}

// row reads a row; one that is missing denies, as it does for the programs.
func (d *decoder) row(n uint32) (*model.Row, error) {
	if r, ok := d.rows[n]; ok {
		return r, nil
	}
	if n <= RowAllow {
		d.rows[n] = d.uniform(model.Verdict(n))
		return d.rows[n], nil
	}
	bits, ok := d.Rows[n]
	if !ok {
		d.rows[n] = d.uniform(model.Deny)
		return d.rows[n], fmt.Errorf("row %d is not in the map rows", n)
	}
	r := &model.Row{Cells: make([]model.Decision, d.width)}
	for i := range r.Cells {
		r.Cells[i].Verdict = model.Verdict(bits.Allow[i/64] >> (i % 64) & 1)
	}
	d.rows[n] = r
	return r, nil
}

func (d *decoder) uniform(v model.Verdict) *model.Row {
	return &model.Row{Cells: slices.Repeat([]model.Decision{{Verdict: v}}, d.width)}
}

// UsedRows returns the rows that some verdict refers to: the map rows is an
// array and cannot say which of its entries are in use.
func UsedRows(verdicts map[uint32]map[uint32]uint32, read func(uint32) (bpfobj.PodRow, error)) (map[uint32]bpfobj.PodRow, error) {
	used := make(map[uint32]bpfobj.PodRow)
	for _, entries := range verdicts {
		for _, n := range entries {
			if _, ok := used[n]; ok || n <= RowAllow {
				continue
			}
			r, err := read(n)
			if err != nil {
				return nil, fmt.Errorf("read row %d: %w", n, err)
			}
			used[n] = r
		}
	}
	return used, nil
}
