// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"cmp"
	"encoding/binary"
	"iter"
	"math/bits"
	"slices"
)

// bitset is a set of numbers, as chunks by position. A set with few members is small, however large they are: rules may
// name hundreds of thousands of blocks, and most sets contain one or two of them. No chunk is empty.
type bitset []chunk

// chunk holds the numbers from 64*at to 64*at+63.
type chunk struct {
	at   int
	word uint64
}

func (b bitset) find(at int) (int, bool) {
	return slices.BinarySearchFunc(b, at, func(c chunk, at int) int { return cmp.Compare(c.at, at) })
}

// word returns the numbers at a position.
func (b bitset) word(at int) uint64 {
	if i, ok := b.find(at); ok {
		return b[i].word
	}
	return 0
}

func (b bitset) has(n int) bool { return b.word(n/64)>>(n%64)&1 != 0 }

// set adds or removes a number, and reports whether the set changed.
func (b *bitset) set(n int, in bool) bool {
	i, found := b.find(n / 64)
	switch bit := uint64(1) << (n % 64); {
	case !found && !in, found && ((*b)[i].word&bit != 0) == in:
		return false
	case !found:
		*b = slices.Insert(*b, i, chunk{n / 64, bit})
	case (*b)[i].word == bit:
		*b = slices.Delete(*b, i, i+1)
	default:
		(*b)[i].word ^= bit
	}
	return true
}

// union returns a new set.
func (b bitset) union(c bitset) bitset {
	u := make(bitset, 0, len(b)+len(c))
	for len(b) > 0 && len(c) > 0 {
		switch {
		case b[0].at < c[0].at:
			u, b = append(u, b[0]), b[1:]
		case b[0].at > c[0].at:
			u, c = append(u, c[0]), c[1:]
		default:
			u, b, c = append(u, chunk{b[0].at, b[0].word | c[0].word}), b[1:], c[1:]
		}
	}
	return append(append(u, b...), c...)
}

// without returns a new set.
func (b bitset) without(c bitset) bitset {
	d := make(bitset, 0, len(b))
	for _, x := range b {
		if left := x.word &^ c.word(x.at); left != 0 {
			d = append(d, chunk{x.at, left})
		}
	}
	return d
}

// sameOutside reports whether the sets are equal apart from the numbers in the third set.
func (b bitset) sameOutside(c, may bitset) bool {
	within := func(b, c bitset) bool {
		return !slices.ContainsFunc(b, func(x chunk) bool { return (x.word^c.word(x.at))&^may.word(x.at) != 0 })
	}
	return within(b, c) && within(c, b)
}

// meets reports whether the sets have a number in common.
func (b bitset) meets(c bitset) bool {
	if len(b) > len(c) {
		b, c = c, b
	}
	return slices.ContainsFunc(b, func(x chunk) bool { return x.word&c.word(x.at) != 0 })
}

func (b bitset) empty() bool { return len(b) == 0 }

// all yields the numbers in ascending order.
func (b bitset) all() iter.Seq[int] {
	return func(yield func(int) bool) {
		for _, x := range b {
			for w := x.word; w != 0; w &= w - 1 {
				if !yield(x.at*64 + bits.TrailingZeros64(w)) {
					return
				}
			}
		}
	}
}

// appendKey appends bytes that only equal sets share.
func (b bitset) appendKey(to []byte) []byte {
	for _, x := range b {
		to = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(to, uint32(x.at)), x.word)
	}
	return to
}
