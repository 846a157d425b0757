// SPDX-License-Identifier: Apache-2.0

package cells

import (
	"math/bits"

	"github.com/isthmus-net/isthmus/common/model"
)

// vector is verdicts by port point: a bit is set if the port is allowed.
type vector []uint64

func (v vector) has(n int) bool { return v[n/64]>>(n%64)&1 != 0 }

// count counts the ports.
func (v vector) count() int {
	n := 0
	for _, w := range v {
		n += bits.OnesCount64(w)
	}
	return n
}

// note adds the ports in which a side differs from the table. A port is excused if the side
// denies it and the table allows it; if denies is the table, the other way round. All other
// differing ports count as differences.
func note(differ, excused, table, side, denies vector) bool {
	found := false
	for i := range table {
		x := table[i] ^ side[i]
		if x == 0 {
			continue
		}
		found = true
		if denies != nil {
			excused[i] |= x &^ denies[i]
			x &= denies[i]
		}
		differ[i] |= x
	}
	return found
}

// vectors caches the verdicts of the sides of a node, one for all cells with the same input.
// They belong to one goroutine.
type vectors struct {
	*comparison
	// classes and indices are the classes of the ports in the State and in the maps.
	classes []model.PortClass
	rows    map[*model.Row]vector
	numbers map[uint32]vector
	denies  *model.Row // for endpoints without a table
	// differ and excused are the ports of one peer.
	differ, excused vector
}

func newVectors(c *comparison) *vectors {
	v := &vectors{comparison: c, denies: &model.Row{}, rows: make(map[*model.Row]vector), numbers: make(map[uint32]vector)}
	v.differ, v.excused = v.vector(), v.vector()
	for _, at := range c.ports {
		v.classes = append(v.classes, c.node.State.Policy.PortClass(at.protocol, at.port))
	}
	return v
}

func (v *vectors) vector() vector { return make(vector, (len(v.ports)+63)/64) }

// make evaluates every port.
func (v *vectors) make(allows func(n int, at portPoint) bool) vector {
	list := v.vector()
	for n, at := range v.ports {
		if allows(n, at) {
			list[n/64] |= 1 << (n % 64)
		}
	}
	return list
}

// row returns the verdicts of a row of a table.
func (v *vectors) row(r *model.Row) vector {
	list, ok := v.rows[r]
	if !ok {
		list = v.make(func(n int, _ portPoint) bool { return r.Cell(v.classes[n]).Verdict == model.Allow })
		v.rows[r] = list
	}
	return list
}

// mapped returns the verdicts of a row of the maps.
func (v *vectors) mapped(number uint32) vector {
	list, ok := v.numbers[number]
	if !ok {
		list = v.make(func(_ int, at portPoint) bool {
			return v.node.Maps.Verdict(number, at.protocol, at.port) == model.Allow
		})
		v.numbers[number] = list
	}
	return list
}

// listed is the verdicts of the rules of a list that match some addresses, under each
// reading of a group.
func (v *vectors) listed(readings int, under func(reading int) func(model.Protocol, uint16) bool) []vector {
	list := make([]vector, readings)
	for i := range list {
		allows := under(i)
		list[i] = v.make(func(_ int, at portPoint) bool { return allows(at.protocol, at.port) })
	}
	return list
}
