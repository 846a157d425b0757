// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// subtract removes a hole from disjoint prefixes.
func subtract(from []netip.Prefix, hole netip.Prefix) []netip.Prefix {
	var left []netip.Prefix
	for _, p := range from {
		switch {
		case !p.Overlaps(hole):
			left = append(left, p)
		case p.Bits() < hole.Bits():
			// Halve until the hole is one of the halves.
			for p.Bits() < hole.Bits() {
				low, high := halves(p)
				if low.Contains(hole.Addr()) {
					left = append(left, high)
					p = low
				} else {
					left = append(left, low)
					p = high
				}
			}
		}
	}
	return left
}

// halves divides a prefix that is not a single address.
func halves(p netip.Prefix) (low, high netip.Prefix) {
	low = netip.PrefixFrom(p.Addr(), p.Bits()+1)
	b := p.Addr().AsSlice()
	b[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	a, _ := netip.AddrFromSlice(b)
	return low, netip.PrefixFrom(a, p.Bits()+1)
}

// canonical returns the fewest prefixes for the same addresses, ascending.
func canonical(list []netip.Prefix) []netip.Prefix {
	sorted := slices.SortedFunc(slices.Values(list), model.ComparePrefixes)
	var out []netip.Prefix
	for _, p := range sorted {
		if n := len(out); n > 0 && out[n-1].Bits() <= p.Bits() && out[n-1].Contains(p.Addr()) {
			continue
		}
		out = append(out, p)
		for n := len(out); n >= 2; n = len(out) {
			parent, ok := join(out[n-2], out[n-1])
			if !ok {
				break
			}
			out = append(out[:n-2], parent)
		}
	}
	return out
}

// join returns the prefix whose halves the two prefixes are.
func join(a, b netip.Prefix) (netip.Prefix, bool) {
	if a.Bits() != b.Bits() || a.Bits() == 0 || a.Addr().BitLen() != b.Addr().BitLen() || a == b {
		return netip.Prefix{}, false
	}
	parent := netip.PrefixFrom(a.Addr(), a.Bits()-1).Masked()
	return parent, parent.Contains(b.Addr())
}

// single returns the prefix of one address.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// addressText formats a prefix for HNS; single addresses have no length.
func addressText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}
