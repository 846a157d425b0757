// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"cmp"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// classIndex finds the classes that rules may tell from World. Its lists may
// name classes that are gone or are in another list now, and name one twice:
// whoever reads them looks.
type classIndex struct {
	all   []*class // by number
	world *class
	byBit [][]*class
	// special are those that rules treat apart for what they are, named those
	// that port names tell apart.
	special, named []*class
	// length is that of all lists, room what it may be before they are made anew.
	length, room int
	turn         uint64 // of toldApart
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

// enter notes what a class is now; was is what it was before, or nil.
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

// toldApart lists, by number, the classes that rules may tell from World.
func (x *classIndex) toldApart(rules []compiledRule) []*class {
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

// index returns the index of the classes that there are.
func (p *peers) index() *classIndex {
	if p.classIndex == nil || p.classIndex.length > p.classIndex.room {
		p.classIndex = newClassIndex(p.byNumber)
	}
	p.classIndex.all = p.byNumber
	return p.classIndex
}

// note brings the index, if there is one, up to date with a class.
func (p *peers) note(c, was *class) {
	if p.classIndex != nil {
		p.classIndex.enter(c, was)
	}
}
