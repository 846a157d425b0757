// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"net/netip"

	"go4.org/netipx"
)

// outside returns the fewest prefixes for the addresses of a prefix outside holes, ascending.
func outside(p netip.Prefix, holes []netip.Prefix) []netip.Prefix {
	var b netipx.IPSetBuilder
	b.AddPrefix(p)
	for _, h := range holes {
		b.RemovePrefix(h)
	}
	rest, _ := b.IPSet() // the error is about prefixes that are not valid
	return rest.Prefixes()
}

// canonical returns the fewest prefixes for the same addresses, ascending.
func canonical(list []netip.Prefix) []netip.Prefix {
	var b netipx.IPSetBuilder
	for _, p := range list {
		b.AddPrefix(p)
	}
	set, _ := b.IPSet()
	return set.Prefixes()
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
