// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// Cell is a range of ports that no rule divides. The cell of all protocols without ports has
// the protocol AnyProtocol.
type Cell struct {
	Protocol    model.Protocol
	First, Last uint16
}

// PortsID names a set of cells of one Partition.
type PortsID int32

// ports is the cells and sets of cells of a Partition.
type ports struct {
	cells []Cell
	// first is the index of the first cell of a protocol.
	first map[model.Protocol]int
	// sets are the sets of cells by their PortsID; ids finds them by content.
	sets []set
	ids  map[string]PortsID
	key  []byte
	// and caches intersections.
	and map[[2]PortsID]PortsID
	// all holds every cell.
	all PortsID
}

// cutPorts cuts the ports of each protocol at both ends of every range.
func cutPorts(ranges map[Cell]bool) *ports {
	p := &ports{first: make(map[model.Protocol]int), ids: make(map[string]PortsID), and: make(map[[2]PortsID]PortsID)}
	for _, proto := range model.PortProtocols {
		starts := map[int]bool{0: true}
		for r := range ranges {
			if r.Protocol == proto {
				starts[int(r.First)], starts[int(r.Last)+1] = true, true
			}
		}
		delete(starts, 65536)
		bounds := append(slices.Sorted(maps.Keys(starts)), 65536)
		p.first[proto] = len(p.cells)
		for i := 0; i+1 < len(bounds); i++ {
			p.cells = append(p.cells, Cell{proto, uint16(bounds[i]), uint16(bounds[i+1] - 1)})
		}
	}
	p.cells = append(p.cells, Cell{Protocol: model.AnyProtocol})
	p.all = p.id(fullSet(len(p.cells)))
	return p
}

// index returns the cell of a port.
func (p *ports) index(proto model.Protocol, port uint16) int {
	first, ok := p.first[proto]
	if !ok {
		return len(p.cells) - 1
	}
	end := first
	for end < len(p.cells) && p.cells[end].Protocol == proto {
		end++
	}
	i, _ := slices.BinarySearchFunc(p.cells[first:end], port, func(c Cell, port uint16) int { return int(c.Last) - int(port) })
	return first + i
}

// addRange adds the cells from first to last of a protocol. The bounds never lie inside a
// cell.
func (p *ports) addRange(to set, proto model.Protocol, first, last uint16) {
	if !proto.HasPorts() {
		return
	}
	for i := p.index(proto, first); i < len(p.cells) && p.cells[i].Protocol == proto && p.cells[i].First <= last; i++ {
		to.add(i)
	}
}

// id returns the ID of a set.
func (p *ports) id(s set) PortsID {
	p.key = p.key[:0]
	for _, w := range s {
		p.key = binary.LittleEndian.AppendUint64(p.key, w)
	}
	id, ok := p.ids[string(p.key)]
	if !ok {
		id = PortsID(len(p.sets))
		p.sets = append(p.sets, slices.Clone(s))
		p.ids[string(p.key)] = id
	}
	return id
}

// maxKnown bounds the cached intersections.
const maxKnown = 1 << 20

// both returns the ID of the intersection of both sets.
func (p *ports) both(a, b PortsID) PortsID {
	switch {
	case a == b || b == p.all:
		return a
	case a == p.all:
		return b
	case a > b:
		a, b = b, a
	}
	id, ok := p.and[[2]PortsID{a, b}]
	if !ok {
		if len(p.and) == maxKnown {
			clear(p.and)
		}
		s := slices.Clone(p.sets[a])
		s.intersect(p.sets[b])
		id = p.id(s)
		p.and[[2]PortsID{a, b}] = id
	}
	return id
}
