// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"encoding/binary"
	"iter"
	"math/bits"
)

// bitset is a set of small numbers. Sets of different length may be equal.
type bitset []uint64

func (b bitset) has(n int) bool { return n/64 < len(b) && b[n/64]>>(n%64)&1 != 0 }

// set adds or removes a number, and reports whether the set changed.
func (b *bitset) set(n int, in bool) bool {
	if b.has(n) == in {
		return false
	}
	for len(*b) <= n/64 {
		*b = append(*b, 0)
	}
	(*b)[n/64] ^= 1 << (n % 64)
	return true
}

func (b bitset) word(i int) uint64 {
	if i < len(b) {
		return b[i]
	}
	return 0
}

// union returns a new set.
func (b bitset) union(c bitset) bitset {
	if len(b) < len(c) {
		b, c = c, b
	}
	u := append(bitset(nil), b...)
	for i, w := range c {
		u[i] |= w
	}
	return u
}

// without returns a new set.
func (b bitset) without(c bitset) bitset {
	d := append(bitset(nil), b...)
	for i := range d {
		d[i] &^= c.word(i)
	}
	return d
}

// sameOutside reports whether the sets are equal apart from the numbers in the third set.
func (b bitset) sameOutside(c, may bitset) bool {
	for i := range max(len(b), len(c)) {
		if (b.word(i)^c.word(i))&^may.word(i) != 0 {
			return false
		}
	}
	return true
}

// meets reports whether the sets have a number in common.
func (b bitset) meets(c bitset) bool {
	for i := range min(len(b), len(c)) {
		if b[i]&c[i] != 0 {
			return true
		}
	}
	return false
}

func (b bitset) empty() bool { return b.sameOutside(nil, nil) }

// all yields the numbers in ascending order.
func (b bitset) all() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i, w := range b {
			for ; w != 0; w &= w - 1 {
				if !yield(i*64 + bits.TrailingZeros64(w)) {
					return
				}
			}
		}
	}
}

// appendKey appends bytes that only equal sets share.
func (b bitset) appendKey(to []byte) []byte {
	n := len(b)
	for n > 0 && b[n-1] == 0 {
		n--
	}
	for _, w := range b[:n] {
		to = binary.BigEndian.AppendUint64(to, w)
	}
	return to
}
