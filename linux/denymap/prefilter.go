// SPDX-License-Identifier: Apache-2.0

package denymap

import (
	"encoding/binary"
	"net/netip"
)

// A prefilter is a bitmap with one bit for each region of addresses, in words of 64 bits.
const (
	regionBits = 20 // REGION_BITS of bpf/include/deny_list.h
	Words      = 1 << (regionBits - 6)
)

// Word is 64 regions: struct prefilter of bpf/include/deny_list.h.
type Word struct {
	// Singles are the regions that have listed or exempt single addresses.
	Singles uint64
	// Prefixes are the regions that overlap a listed prefix.
	Prefixes uint64
}

// Prefilter is the words by number.
type Prefilter []Word

// region returns the region of an address: the first 20 bits of IPv4, a hash of the first 32
// bits of IPv6.
func region(a netip.Addr) uint32 {
	if a.Is4() {
		b := a.As4()
		return binary.BigEndian.Uint32(b[:]) >> (32 - regionBits)
	}
	b := a.As16()
	return regionOf6(binary.BigEndian.Uint32(b[:]))
}

// regionOf6 multiplies by 2^32 divided by the golden ratio, which spreads adjacent prefixes.
func regionOf6(first uint32) uint32 { return first * 0x9e3779b1 >> (32 - regionBits) }

func (s Prefilter) addSingle(a netip.Addr) {
	n := region(a)
	s[n/64].Singles |= 1 << (n % 64)
}

func (s Prefilter) addPrefix(p netip.Prefix) {
	set := func(n uint32) { s[n/64].Prefixes |= 1 << (n % 64) }
	if p.Addr().Is4() {
		first, count := region(p.Addr()), uint32(1)
		if p.Bits() < regionBits {
			count = 1 << (regionBits - p.Bits())
		}
		for n := range count {
			set(first + n)
		}
		return
	}
	const hashed = 32 // bits
	switch bits := p.Bits(); {
	case bits >= hashed:
		set(region(p.Addr()))
	case bits <= hashed-regionBits: // covers at least as many 32-bit values as there are regions
		for i := range s {
			s[i].Prefixes = ^uint64(0)
		}
	default:
		b := p.Addr().As16()
		first := binary.BigEndian.Uint32(b[:])
		for n := range uint32(1) << (hashed - bits) {
			set(regionOf6(first + n))
		}
	}
}

// may reports which lookups the prefilter requires for an address.
func (s Prefilter) may(a netip.Addr) (singles, prefixes bool) {
	n := region(a)
	return s[n/64].Singles>>(n%64)&1 != 0, s[n/64].Prefixes>>(n%64)&1 != 0
}
