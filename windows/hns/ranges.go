// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"net/netip"
	"sort"

	"go4.org/netipx"
)

// ranges is a set of addresses as disjoint ascending intervals.
type ranges struct{ all []netipx.IPRange }

func newRanges(prefixes []netip.Prefix) *ranges {
	var b netipx.IPSetBuilder
	for _, p := range prefixes {
		b.AddPrefix(p)
	}
	set, _ := b.IPSet() // the error is about prefixes that are not valid
	return &ranges{set.Ranges()}
}

func (r *ranges) empty() bool { return len(r.all) == 0 }

func (r *ranges) contains(a netip.Addr) bool {
	i := sort.Search(len(r.all), func(i int) bool { return r.all[i].To().Compare(a) >= 0 })
	return i < len(r.all) && r.all[i].From().Compare(a) <= 0
}

// keep clears the entries of addresses outside the ranges; the addresses must be in ascending order.
func (r *ranges) keep(addrs []netip.Addr, set []bool) {
	i := 0
	for n, a := range addrs {
		for i < len(r.all) && r.all[i].To().Compare(a) < 0 {
			i++
		}
		set[n] = set[n] && i < len(r.all) && r.all[i].From().Compare(a) <= 0
	}
}
