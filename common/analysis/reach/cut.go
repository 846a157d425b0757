// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"iter"

	"github.com/isthmus-net/isthmus/common/model"
)

// verdicts are the allowed ports, by version.
type verdicts [2]PortsID

// cutter divides the peers of a pod into parts that its rules cannot distinguish, and
// decides each part. It belongs to one goroutine.
type cutter struct {
	f       *family
	classes *classes
	*decider
	// part is the index of the part of each class of groups in the last cut; it is valid if
	// stamp equals the turn.
	part  []int32
	stamp []int64
	turn  int64
	found []verdicts
}

func (f *family) newCutter() *cutter {
	return &cutter{f: f, classes: newClasses(make([]int32, len(f.groups)), 1, len(f.groups)), decider: newDecider(f.p.ports)}
}

// cut yields the verdicts of a pair for some groups, in ascending order. A nil pair belongs
// to no pod and allows everything.
func (c *cutter) cut(p *pair, groups set) iter.Seq2[int, verdicts] {
	return func(yield func(int, verdicts) bool) {
		if groups.empty() {
			return
		}
		if p != nil {
			c.divide(p, groups)
		}
		c.turn++
		c.found = c.found[:0]
		for g := range groups.all() {
			if p == nil {
				if !yield(g, verdicts{c.p.all, c.p.all}) {
					return
				}
				continue
			}
			if !yield(g, c.found[c.partOf(p, g)]) {
				return
			}
		}
	}
}

// divide distinguishes groups by all rules of all versions.
func (c *cutter) divide(p *pair, groups set) {
	c.classes.reset()
	for _, s := range p.sides {
		for _, rules := range s.rules {
			for _, r := range rules {
				if !r.every {
					c.classes.split(r.yes.both(groups))
					c.classes.split(r.maybe.both(groups))
				}
				if len(r.named) > 0 && s.direction == model.Egress {
					c.classes.split(s.view.unsure.both(groups))
					c.classes.splitBy(groups.all(), func(g int) int32 { return s.view.names[g] })
				}
			}
		}
	}
}

// partOf returns the part of a group, and decides a new part.
func (c *cutter) partOf(p *pair, g int) int32 {
	class := c.classes.class[g]
	for int(class) >= len(c.stamp) {
		c.stamp, c.part = append(c.stamp, 0), append(c.part, 0)
	}
	if c.stamp[class] != c.turn {
		c.stamp[class], c.part[class] = c.turn, int32(len(c.found))
		var v verdicts
		for i, s := range p.sides {
			v[i] = c.decide(s, g)
		}
		c.found = append(c.found, v)
	}
	return c.part[class]
}
