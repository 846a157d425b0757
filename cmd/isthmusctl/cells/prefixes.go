// SPDX-License-Identifier: Apache-2.0

package cells

import (
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// prefixes are those that rules can tell addresses apart by: which of them
// contain an address follows from the longest one that does.
type prefixes struct {
	all     map[netip.Prefix]bool
	lengths [2][]int // longest first; index 1 is IPv6
}

func newPrefixes() *prefixes { return &prefixes{all: make(map[netip.Prefix]bool)} }

func (p *prefixes) addPolicies(s *model.Snapshot) {
	for _, policy := range s.Policies.All() {
		for _, d := range model.Directions {
			for _, r := range policy.Rules[d] {
				for _, peer := range r.Peers {
					if peer.Kind != model.PeerBlock {
						continue
					}
					p.add(peer.Block.CIDR)
					for _, e := range peer.Block.Except {
						p.add(e)
					}
				}
			}
		}
	}
	for v := range p.lengths {
		slices.Sort(p.lengths[v])
		slices.Reverse(p.lengths[v])
	}
}

func (p *prefixes) add(prefix netip.Prefix) {
	prefix = prefix.Masked()
	if p.all[prefix] {
		return
	}
	p.all[prefix] = true
	v := 0
	if prefix.Addr().Is6() {
		v = 1
	}
	if !slices.Contains(p.lengths[v], prefix.Bits()) {
		p.lengths[v] = append(p.lengths[v], prefix.Bits())
	}
}

// longest returns the longest prefix that contains the address, or none.
func (p *prefixes) longest(a netip.Addr) netip.Prefix {
	v := 0
	if a.Is6() {
		v = 1
	}
	for _, bits := range p.lengths[v] {
		if candidate, err := a.Prefix(bits); err == nil && p.all[candidate] {
			return candidate
		}
	}
	return netip.Prefix{}
}
