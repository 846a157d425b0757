// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// span is a run of blocks of a pool, both ends included.
type span struct{ first, last uint64 }

// pool is a range of the cluster, divided into blocks that are numbered from 0.
type pool struct {
	prefix netip.Prefix
	mask   int
	// taken are the blocks that overlap a range in use, sorted and disjoint.
	taken []span
	// after is the block at which the search for a free block begins: the one after the last block in
	// use. The block of a deleted node is therefore reused last.
	after uint64
}

// makePools divides the ranges and marks the blocks in use.
func makePools(c Config, nodes []Node) []*pool {
	var pools []*pool
	for _, r := range c.Ranges {
		p := &pool{prefix: r, mask: c.mask(r.Addr().Is6())}
		var spans []span
		note := func(x netip.Prefix, ofNode bool) {
			s, ok := p.span(x)
			if !ok {
				return
			}
			spans = append(spans, s)
			if ofNode {
				p.after = max(p.after, s.last+1)
			}
		}
		for _, x := range c.Reserved {
			note(x, false)
		}
		for _, n := range nodes {
			for _, x := range n.PodCIDRs {
				note(x, true)
			}
			for _, a := range n.Addresses {
				note(netip.PrefixFrom(a, a.BitLen()), false)
			}
		}
		p.taken = merge(spans)
		pools = append(pools, p)
	}
	return pools
}

// count returns the number of blocks.
func (p *pool) count() uint64 { return 1 << (p.mask - p.prefix.Bits()) }

// free counts the blocks that are not taken.
func (p *pool) free() uint64 {
	n := p.count()
	for _, s := range p.taken {
		n -= s.last - s.first + 1
	}
	return n
}

// span returns the blocks that a prefix overlaps.
func (p *pool) span(x netip.Prefix) (span, bool) {
	x = x.Masked()
	switch {
	case !x.IsValid() || !p.prefix.Overlaps(x):
		return span{}, false
	case x.Bits() <= p.prefix.Bits():
		return span{0, p.count() - 1}, true
	}
	first := p.index(x.Addr())
	return span{first, first + 1<<max(0, p.mask-x.Bits()) - 1}, true
}

// index returns the number of the block that contains an address: the bits between the prefix and the mask,
// at most 32.
func (p *pool) index(a netip.Addr) uint64 {
	high, low := words(a)
	return bits(high, low, p.mask) & (p.count() - 1)
}

// bits returns the lowest 64 of the first n bits of a number of 128 bits.
func bits(high, low uint64, n int) uint64 {
	shift := uint(128 - n)
	if shift >= 64 {
		return high >> (shift - 64)
	}
	return high<<(64-shift) | low>>shift
}

// words returns an address as a number of 128 bits; IPv4 is in the highest bits.
func words(a netip.Addr) (high, low uint64) {
	if a.Is4() {
		b := a.As4()
		return uint64(binary.BigEndian.Uint32(b[:])) << 32, 0
	}
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

// block returns the prefix of a block.
func (p *pool) block(index uint64) netip.Prefix {
	high, low := words(p.prefix.Addr())
	if shift := uint(128 - p.mask); shift >= 64 {
		high |= index << (shift - 64)
	} else {
		high |= index >> (64 - shift)
		low |= index << shift
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], high)
	binary.BigEndian.PutUint64(b[8:], low)
	if p.prefix.Addr().Is4() {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte(b[:4])), p.mask)
	}
	return netip.PrefixFrom(netip.AddrFrom16(b), p.mask)
}

// next returns a free block, searching from after on and then from the beginning.
func (p *pool) next() (uint64, bool) {
	for _, from := range []uint64{p.after, 0} {
		for _, s := range p.taken {
			if s.first <= from && from <= s.last {
				from = s.last + 1
			}
		}
		if from < p.count() {
			return from, true
		}
	}
	return 0, false
}

// occupy marks blocks of a node as taken.
func (p *pool) occupy(s span) {
	p.taken = merge(append(p.taken, s))
	p.after = max(p.after, s.last+1)
	if p.after >= p.count() {
		p.after = 0
	}
}

// merge sorts spans and joins adjacent and overlapping ones.
func merge(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int {
		if a.first < b.first {
			return -1
		}
		if a.first > b.first {
			return 1
		}
		return 0
	})
	var all []span
	for _, s := range spans {
		if n := len(all); n > 0 && s.first <= all[n-1].last+1 {
			all[n-1].last = max(all[n-1].last, s.last)
		} else {
			all = append(all, s)
		}
	}
	return all
}
