// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"math/big"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// addressRange is the addresses of a prefix that are in no longer prefix of the
// survey, and that no pod and no node has in any variant.
type addressRange struct {
	prefix netip.Prefix
	// holes are the longest prefixes inside that are ranges of their own.
	holes []netip.Prefix
	// unknown: in a range of pods.
	unknown bool
}

// String returns the prefix and what is left out of it.
func (r *addressRange) String() string {
	text := r.prefix.String()
	if len(r.holes) > 0 {
		holes := make([]string, len(r.holes))
		for i, h := range r.holes {
			holes[i] = h.String()
		}
		text += " besides " + strings.ReplaceAll(shorten(holes, 3), ", ", " ")
	}
	if r.unknown {
		text += " (pods that are not known)"
	}
	return text
}

// addRanges groups the ranges of addresses that nobody has.
func (s *survey) addRanges() {
	groups := make(map[string]*group)
	for _, r := range s.ranges() {
		g := &group{v6: r.prefix.Addr().Is6()}
		key := fmt.Sprint(g.v6)
		for _, w := range s.variants {
			at := w.stand(nil, func(s *model.State) model.PeerClass { return s.PrefixClass(r.prefix) })
			g.stands, g.os = append(g.stands, at), append(g.os, "")
			key += "\n" + at.key()
		}
		if groups[key] == nil {
			groups[key] = g
			s.groups = append(s.groups, g)
		}
		groups[key].ranges = append(groups[key].ranges, r)
	}
}

// ranges cuts all addresses wherever a prefix of some part begins or ends.
func (s *survey) ranges() []*addressRange {
	prefixes := map[netip.Prefix]bool{
		netip.PrefixFrom(netip.IPv4Unspecified(), 0): true,
		netip.PrefixFrom(netip.IPv6Unspecified(), 0): true,
	}
	for _, w := range s.variants {
		for _, p := range w.parts {
			for _, e := range p.state.Prefixes {
				prefixes[e.Prefix] = true
			}
		}
	}
	sorted := slices.SortedFunc(maps.Keys(prefixes), model.ComparePrefixes)
	all := make([]*addressRange, len(sorted))
	left := make([]*big.Int, len(sorted)) // addresses that are in no hole and nobody's
	var open []int                        // the prefixes around the current one, outermost first
	for i, p := range sorted {
		all[i] = &addressRange{prefix: p}
		left[i] = size(p)
		for len(open) > 0 && !sorted[open[len(open)-1]].Contains(p.Addr()) {
			open = open[:len(open)-1]
		}
		if len(open) > 0 {
			outer := open[len(open)-1]
			all[outer].holes = append(all[outer].holes, p)
			left[outer].Sub(left[outer], size(p))
		}
		open = append(open, i)
		for _, w := range s.variants {
			all[i].unknown = all[i].unknown || w.snapshot.PodRange(p.Addr())
		}
	}
	for a := range s.owned() {
		i := longest(sorted, a)
		left[i].Sub(left[i], big.NewInt(1))
	}
	var some []*addressRange
	for i, r := range all {
		if left[i].Sign() > 0 {
			some = append(some, r)
		}
	}
	return some
}

// size is the number of addresses in a prefix.
func size(p netip.Prefix) *big.Int {
	return new(big.Int).Lsh(big.NewInt(1), uint(p.Addr().BitLen()-p.Bits()))
}

// longest returns the index of the longest prefix with the address. The
// prefixes are sorted and have one for every address.
func longest(sorted []netip.Prefix, a netip.Addr) int {
	for bits := a.BitLen(); ; bits-- {
		p, _ := a.Prefix(bits)
		if i, ok := slices.BinarySearchFunc(sorted, p, model.ComparePrefixes); ok || bits == 0 {
			return i
		}
	}
}

// owned are the addresses that a pod or a node has in some variant.
func (s *survey) owned() map[netip.Addr]bool {
	all := make(map[netip.Addr]bool)
	for _, w := range s.variants {
		for a := range w.owners.Pods {
			all[a] = true
		}
		for a := range w.owners.Nodes {
			all[a] = true
		}
	}
	return all
}
