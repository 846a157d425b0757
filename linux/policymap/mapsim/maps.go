// SPDX-License-Identifier: Apache-2.0

package mapsim

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// Maps is the entries of one node's maps, for a comparison of all cells. Methods that only read
// are safe for concurrent use. Class, Row and Verdict are those of the Entries.
type Maps struct {
	*policymap.Entries
	// Index is the slot of each endpoint.
	Index map[model.EndpointID]uint32
}

// Encode lays out a State in empty maps, as a new node would. The entries are the result of the
// map writes.
func Encode(state *model.State) (*Maps, error) {
	m := &Maps{Entries: policymap.NewEntries(), Index: make(map[model.EndpointID]uint32)}
	layout := policymap.NewLayout(unbounded)
	for id := range state.Policy.Endpoints {
		w, err := layout.AddSlot(id)
		if err != nil {
			return nil, fmt.Errorf("lay out the maps of node %q: %w", state.Node, err)
		}
		m.Index[id] = w.Index
		m.Entries.Slots[w.Index] = w.Slot
	}
	for _, step := range dataplane.Plan(layout.State(), state) {
		w, err := layout.Advance(step, time.Now())
		if err != nil {
			return nil, fmt.Errorf("lay out the maps of node %q: %w", state.Node, err)
		}
		m.Execute(w)
	}
	return m, nil
}

// unbounded is a capacity for clusters of any size.
var unbounded = policymap.Capacity{Slots: 1 << 20, Peers4: 1 << 24, Peers6: 1 << 24, Prefixes4: 1 << 20, Prefixes6: 1 << 20,
	Verdicts: 1 << 28, Rows: 1 << 24, Tables: 1 << 20}

// Problems lists what a starting agent could not read back from the maps.
func (m *Maps) Problems() []string {
	_, problems := policymap.Decode(m.Clone(), m.Index, unbounded)
	slices.Sort(problems)
	return problems
}

// Slot returns the slot of an endpoint, and false if it has none.
func (m *Maps) Slot(id model.EndpointID) (uint32, bool) {
	slot, ok := m.Index[id]
	return slot, ok
}

// Table returns the number of a slot's Table and the Table with this number. It returns false
// if there is none.
func (m *Maps) Table(slot uint32) (uint32, model.TableID, bool) {
	number := policymap.TableNumber(m.Entries.Slots[slot].Table)
	id, ok := m.Tables[number]
	return number, id, ok
}

// Addresses yields everything that has its own class: single addresses, as prefixes of full
// length, and prefixes.
func (m *Maps) Addresses() iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for a := range m.Peers {
			if !yield(netip.PrefixFrom(a, a.BitLen())) {
				return
			}
		}
		for p := range m.Prefixes {
			if !yield(p) {
				return
			}
		}
	}
}

// PortClass returns the class of a port, and false for protocols without ports.
func (m *Maps) PortClass(p model.Protocol, port uint16) (uint16, bool) {
	i, ok := policymap.PortIndex(p, port)
	if !ok {
		return 0, false
	}
	return m.Entries.Ports[i], true
}

// Ranges yields the ranges of ports between which the class changes, except ranges of ports
// that no rule names.
func (m *Maps) Ranges() iter.Seq[model.PortMatch] {
	return func(yield func(model.PortMatch) bool) {
		for i, protocol := range model.PortProtocols {
			part := m.Entries.Ports[i*65536 : (i+1)*65536]
			for first := 0; first < len(part); {
				last := first
				for last+1 < len(part) && part[last+1] == part[first] {
					last++
				}
				if part[first] != uint16(model.OtherPorts) && !yield(model.PortMatch{Protocol: protocol, First: uint16(first), Last: uint16(last)}) {
					return
				}
				first = last + 1
			}
		}
	}
}
