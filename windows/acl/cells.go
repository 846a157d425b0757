// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"cmp"
	"encoding/binary"
	"iter"
	"math/bits"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// cell is a part of (protocol, port) that the State does not divide. Cell 0 is all protocols without ports.
// The others tile the ports of each protocol with ports, so ports without a class are cells too.
type cell struct {
	protocol    model.Protocol
	first, last uint16
	class       model.PortClass
}

// portCells lists the cells of a State by protocol and port.
func portCells(s *model.State) []cell {
	cells := []cell{{class: model.OtherPorts}}
	for _, p := range model.PortProtocols {
		next := 0
		add := func(last int, class model.PortClass) {
			if next <= last {
				cells = append(cells, cell{p, uint16(next), uint16(last), class})
				next = last + 1
			}
		}
		for _, r := range sortedRanges(s.Policy.Ports) {
			if r.Protocol == p {
				add(int(r.First)-1, model.OtherPorts)
				add(int(r.Last), r.Class)
			}
		}
		add(65535, model.OtherPorts)
	}
	return cells
}

func sortedRanges(ranges []model.PortRange) []model.PortRange {
	return slices.SortedFunc(slices.Values(ranges), func(a, b model.PortRange) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First))
	})
}

// cellSet is a set of cells, for example the cells that a row allows. All sets of one lowering have the
// same length.
type cellSet []uint64

func newCellSet(n int) cellSet { return make(cellSet, (n+63)/64) }

func (s cellSet) has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }
func (s cellSet) add(i int)      { s[i/64] |= 1 << (i % 64) }

func (s cellSet) union(t cellSet) cellSet {
	u := make(cellSet, len(s))
	for i := range s {
		u[i] = s[i] | t[i]
	}
	return u
}

func (s cellSet) intersect(t cellSet) cellSet {
	u := make(cellSet, len(s))
	for i := range s {
		u[i] = s[i] & t[i]
	}
	return u
}

func (s cellSet) minus(t cellSet) cellSet {
	u := make(cellSet, len(s))
	for i := range s {
		u[i] = s[i] &^ t[i]
	}
	return u
}

// differ returns the cells that only one of the sets has.
func (s cellSet) differ(t cellSet) cellSet {
	u := make(cellSet, len(s))
	for i := range s {
		u[i] = s[i] ^ t[i]
	}
	return u
}

func (s cellSet) empty() bool {
	for _, w := range s {
		if w != 0 {
			return false
		}
	}
	return true
}

func (s cellSet) equal(t cellSet) bool { return slices.Equal(s, t) }

// within reports whether t contains s.
func (s cellSet) within(t cellSet) bool {
	for i := range s {
		if s[i]&^t[i] != 0 {
			return false
		}
	}
	return true
}

func (s cellSet) meets(t cellSet) bool {
	for i := range s {
		if s[i]&t[i] != 0 {
			return true
		}
	}
	return false
}

func (s cellSet) count() int {
	n := 0
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// common counts the cells in both sets.
func (s cellSet) common(t cellSet) int {
	n := 0
	for i := range s {
		n += bits.OnesCount64(s[i] & t[i])
	}
	return n
}

// all yields the cells of the set, ascending.
func (s cellSet) all() iter.Seq[int] {
	return func(yield func(int) bool) {
		for w, word := range s {
			for ; word != 0; word &= word - 1 {
				if !yield(w*64 + bits.TrailingZeros64(word)) {
					return
				}
			}
		}
	}
}

// key returns a text that is equal for equal sets only.
func (s cellSet) key() string {
	b := make([]byte, 0, len(s)*8)
	for _, w := range s {
		b = binary.BigEndian.AppendUint64(b, w)
	}
	return string(b)
}
