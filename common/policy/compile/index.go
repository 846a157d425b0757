// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"cmp"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// classIndex finds the classes that rules may distinguish from World. Its lists may contain
// removed classes, classes that have moved to another list, and duplicates. Readers must
// skip these.
type classIndex struct {
	all   []*class // by number
	world *class
	byBit [][]*class
	// special are classes of a kind other than KindKnown; named are those that port names
	// distinguish.
	special, named []*class
	// length is the length of all lists; room is the length at which they are rebuilt.
	length, room int
	turn         uint64 // of distinguished
}

func newClassIndex(all []*class) *classIndex {
	x := &classIndex{}
	for _, c := range all {
		x.enter(c, nil)
		if c.world() {
			x.world = c
		}
	}
	x.all, x.room = all, 2*x.length+4096
	return x
}

// enter records the current content of a class; was is its content before, or nil.
func (x *classIndex) enter(c, was *class) {
	if was == nil {
		was = &class{}
	}
	put := func(list *[]*class) {
		*list = append(*list, c)
		x.length++
	}
	if c.kind != model.KindKnown && was.kind == model.KindKnown {
		put(&x.special)
	}
	if len(c.names) > 0 && len(was.names) == 0 {
		put(&x.named)
	}
	for bit := range c.bits.all() {
		if was.bits.has(bit) {
			continue
		}
		for len(x.byBit) <= bit {
			x.byBit = append(x.byBit, nil)
		}
		put(&x.byBit[bit])
	}
}

// distinguished lists, by number, the classes that rules may distinguish from World.
func (x *classIndex) distinguished(rules []compiledRule) []*class {
	x.turn++
	var found []*class
	add := func(list []*class, still func(*class) bool) {
		for _, c := range list {
			if c.turn != x.turn && !c.gone && still(c) {
				c.turn = x.turn
				found = append(found, c)
			}
		}
	}
	add(x.special, func(c *class) bool { return c.kind != model.KindKnown })
	for i := range rules {
		if rules[i].named {
			add(x.named, func(c *class) bool { return len(c.names) > 0 })
		}
		for _, t := range rules[i].terms {
			if t.bit < len(x.byBit) {
				add(x.byBit[t.bit], func(c *class) bool { return c.bits.has(t.bit) })
			}
		}
	}
	slices.SortFunc(found, compareClasses)
	return found
}

func compareClasses(a, b *class) int { return cmp.Compare(a.number, b.number) }

// index returns the index of the current classes; it rebuilds an index that is too long.
func (p *peers) index() *classIndex {
	if p.classIndex == nil || p.classIndex.length > p.classIndex.room {
		p.classIndex = newClassIndex(p.byNumber)
	}
	p.classIndex.all = p.byNumber
	return p.classIndex
}

// note updates the index, if there is one, for a class.
func (p *peers) note(c, was *class) {
	if p.classIndex != nil {
		p.classIndex.enter(c, was)
	}
}
