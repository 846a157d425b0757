// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"maps"
	"math/big"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// rangeEnds cuts all addresses of a family wherever a prefix of some version begins or ends.
// It lists the ranges that have an address without owner.
func (p *Partition) rangeEnds(v6 bool) []*end {
	unspecified := netip.IPv4Unspecified()
	if v6 {
		unspecified = netip.IPv6Unspecified()
	}
	prefixes := map[netip.Prefix]bool{netip.PrefixFrom(unspecified, 0): true}
	for _, v := range p.versions {
		for prefix := range v.prefixes {
			if prefix.Addr().Is6() == v6 {
				prefixes[prefix] = true
			}
		}
	}
	sorted := slices.SortedFunc(maps.Keys(prefixes), model.ComparePrefixes)
	all := make([]*Range, len(sorted))
	left := make([]*big.Int, len(sorted)) // the number of addresses outside holes and without owner
	var open []int                        // the prefixes around the current one, outermost first
	for i, prefix := range sorted {
		all[i] = &Range{Prefix: prefix}
		left[i] = size(prefix)
		for len(open) > 0 && !sorted[open[len(open)-1]].Contains(prefix.Addr()) {
			open = open[:len(open)-1]
		}
		if len(open) > 0 {
			outer := open[len(open)-1]
			all[outer].Except = append(all[outer].Except, prefix)
			left[outer].Sub(left[outer], size(prefix))
		}
		open = append(open, i)
	}
	for a := range p.owned(v6) {
		i := longest(sorted, a)
		left[i].Sub(left[i], big.NewInt(1))
	}
	var ends []*end
	for i, r := range all {
		if left[i].Sign() <= 0 {
			continue
		}
		e := &end{rng: r}
		for _, v := range p.versions {
			unknown := v.podRange(r.Prefix)
			r.Unknown = r.Unknown || unknown
			e.unknown, e.at = append(e.unknown, unknown), append(e.at, r.Prefix)
		}
		ends = append(ends, e)
	}
	return ends
}

// size is the number of addresses in a prefix.
func size(p netip.Prefix) *big.Int {
	return new(big.Int).Lsh(big.NewInt(1), uint(p.Addr().BitLen()-p.Bits()))
}

// longest returns the index of the longest prefix that contains the address. The prefixes
// are sorted and cover every address.
func longest(sorted []netip.Prefix, a netip.Addr) int {
	for bits := a.BitLen(); ; bits-- {
		p, _ := a.Prefix(bits)
		if i, ok := slices.BinarySearchFunc(sorted, p, model.ComparePrefixes); ok || bits == 0 {
			return i
		}
	}
}

// podRange reports whether the whole prefix is in a pod range of some node.
func (v *version) podRange(p netip.Prefix) bool {
	for _, n := range v.snapshot.Nodes.All() {
		for _, c := range n.PodCIDRs {
			if c.Bits() <= p.Bits() && c.Contains(p.Addr()) {
				return true
			}
		}
	}
	return false
}

// owned are the addresses of a family that a pod or a node has in some version.
func (p *Partition) owned(v6 bool) map[netip.Addr]bool {
	all := make(map[netip.Addr]bool)
	for _, v := range p.versions {
		for a := range v.owners.Pods {
			if a.Is6() == v6 {
				all[a] = true
			}
		}
		for a := range v.owners.Nodes {
			if a.Is6() == v6 {
				all[a] = true
			}
		}
	}
	return all
}

// Owned reports whether a pod or a node has the address in some version.
func (p *Partition) Owned(a netip.Addr) bool {
	return slices.ContainsFunc(p.versions, func(v *version) bool { return v.owners.Pods[a] != nil || v.owners.Nodes[a] != nil })
}
