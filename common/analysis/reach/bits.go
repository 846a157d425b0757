// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"iter"
	"math/bits"
	"slices"
)

// set is a set of small numbers. Sets that are combined have the same length.
type set []uint64

func newSet(n int) set { return make(set, (n+63)/64) }

// fullSet holds the numbers from 0 to n-1.
func fullSet(n int) set {
	s := newSet(n)
	for i := range s {
		s[i] = ^uint64(0)
	}
	if n%64 != 0 {
		s[len(s)-1] = 1<<(n%64) - 1
	}
	return s
}

func (s set) add(i int)      { s[i/64] |= 1 << (i % 64) }
func (s set) has(i int) bool { return s[i/64]>>(i%64)&1 != 0 }

// union adds the members of t.
func (s set) union(t set) {
	for i, w := range t {
		s[i] |= w
	}
}

// intersect removes the members that are not in t.
func (s set) intersect(t set) {
	for i, w := range t {
		s[i] &= w
	}
}

// remove removes the members of t.
func (s set) remove(t set) {
	for i, w := range t {
		s[i] &^= w
	}
}

// addChanged adds the numbers that only one of two sets holds.
func (s set) addChanged(a, b set) {
	for i := range s {
		s[i] |= a[i] ^ b[i]
	}
}

func (s set) empty() bool {
	return !slices.ContainsFunc(s, func(w uint64) bool { return w != 0 })
}

// all yields the members in ascending order.
func (s set) all() iter.Seq[int] { return s.both(s) }

// both yields the numbers that are also in t.
func (s set) both(t set) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i, w := range s {
			for w &= t[i]; w != 0; w &= w - 1 {
				if !yield(i*64 + bits.TrailingZeros64(w)) {
					return
				}
			}
		}
	}
}
