// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"iter"
	"slices"
)

// classes divides the numbers from 0 on into classes that no set so far distinguishes.
type classes struct {
	class []int32 // by number
	next  int32
	// to is the class that members of a class move to in the current split; it is valid if
	// stamp equals the turn.
	to    []int32
	stamp []int64
	turn  int64
}

// newClasses begins with a division into count classes. It owns the slice.
func newClasses(class []int32, count, numbers int) *classes {
	return &classes{class: class, next: int32(count), to: make([]int32, numbers+count), stamp: make([]int64, numbers+count)}
}

// reset makes one class of all numbers.
func (c *classes) reset() {
	clear(c.class)
	c.next = 1
}

// split separates the members of a set from the rest of their classes.
func (c *classes) split(members iter.Seq[int]) {
	c.turn++
	for n := range members {
		was := c.class[n]
		if c.stamp[was] != c.turn {
			c.stamp[was], c.to[was] = c.turn, c.fresh()
		}
		c.class[n] = c.to[was]
	}
}

// splitBy separates members with different keys.
func (c *classes) splitBy(members iter.Seq[int], key func(int) int32) {
	to := make(map[[2]int32]int32)
	for n := range members {
		k := [2]int32{c.class[n], key(n)}
		id, ok := to[k]
		if !ok {
			id = c.fresh()
			to[k] = id
		}
		c.class[n] = id
	}
}

// fresh returns the number of a new, empty class. If a split moves all members of a class,
// its old number stays unused.
func (c *classes) fresh() int32 {
	id := c.next
	c.next++
	if int(id) >= len(c.to) {
		c.to = slices.Grow(c.to, int(id))[:2*int(id)]
		c.stamp = append(c.stamp, make([]int64, len(c.to)-len(c.stamp))...)
	}
	return id
}
