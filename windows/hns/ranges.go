// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"net/netip"
	"slices"
	"sort"
)

// ranges is a set of addresses as disjoint ascending intervals.
type ranges struct {
	first, last []netip.Addr
}

// newRanges joins masked prefixes, which are nested or disjoint.
func newRanges(prefixes []netip.Prefix) *ranges {
	sorted := slices.SortedFunc(slices.Values(prefixes), func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	r := &ranges{}
	for _, p := range sorted {
		if n := len(r.last); n > 0 && p.Addr().Compare(r.last[n-1]) <= 0 && p.Addr().BitLen() == r.last[n-1].BitLen() {
			continue
		}
		r.first = append(r.first, p.Addr())
		r.last = append(r.last, LastAddr(p))
	}
	return r
}

func (r *ranges) empty() bool { return len(r.first) == 0 }

func (r *ranges) contains(a netip.Addr) bool {
	i := sort.Search(len(r.last), func(i int) bool { return r.last[i].Compare(a) >= 0 })
	return i < len(r.first) && r.first[i].BitLen() == a.BitLen() && r.first[i].Compare(a) <= 0
}

// keep clears the entries of addresses outside the ranges; the addresses must be in ascending order.
func (r *ranges) keep(addrs []netip.Addr, set []bool) {
	i := 0
	for n, a := range addrs {
		for i < len(r.last) && r.last[i].Compare(a) < 0 {
			i++
		}
		set[n] = set[n] && i < len(r.last) && r.first[i].BitLen() == a.BitLen() && r.first[i].Compare(a) <= 0
	}
}

// LastAddr returns the highest address of a prefix.
func LastAddr(p netip.Prefix) netip.Addr {
	if p.Addr().Is4() {
		b := p.Addr().As4()
		fill(b[:], p.Bits())
		return netip.AddrFrom4(b)
	}
	b := p.Addr().As16()
	fill(b[:], p.Bits())
	return netip.AddrFrom16(b)
}

func fill(b []byte, bits int) {
	for i := range b {
		if n := bits - i*8; n <= 0 {
			b[i] = 0xFF
		} else if n < 8 {
			b[i] |= 0xFF >> n
		}
	}
}
