// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// At returns the group that an address belongs to in the first version. It returns nil for an address that no
// group has: the second address of a pod, and addresses whose owner is not in every version.
func (p *Partition) At(a netip.Addr) *Group {
	f, v := p.family(a.Is6()), p.versions[0]
	if pod := v.owners.Pods[a]; pod != nil {
		e := f.views[0].endOf[v.index[pod.PodID]]
		if e < 0 || f.ends[e].member.Addrs[0] != a {
			return nil
		}
		return f.groups[f.groupOf[e]]
	}
	if v.owners.Nodes[a] != nil {
		for _, g := range f.groups[f.firstNode:] {
			if g.Addr == a {
				return g
			}
		}
		return nil
	}
	if p.Owned(a) {
		return nil
	}
	var found *Group
	longest := -1
	for _, g := range f.groups {
		for _, r := range g.Ranges {
			if r.Prefix.Bits() > longest && r.Prefix.Contains(a) {
				found, longest = g, r.Prefix.Bits()
			}
		}
	}
	return found
}

// Client returns an address of a group, in the first version, that opens connections to another: not the
// destination itself, if the group has several.
func (p *Partition) Client(g *Group, to netip.Addr) netip.Addr {
	switch {
	case g.Node != "":
		return g.Addr
	case len(g.Pods) > 1 && g.Pods[0].Addrs[0] == to:
		return g.Pods[1].Addrs[0]
	case len(g.Pods) > 0:
		return g.Pods[0].Addrs[0]
	}
	return p.Free(g.Ranges[0])
}

// Free returns the first address of a range that belongs to it. Every range of a group has one.
func (p *Partition) Free(r *Range) netip.Addr {
	a := r.Prefix.Addr()
	for {
		hole := slices.IndexFunc(r.Except, func(e netip.Prefix) bool { return e.Contains(a) })
		switch {
		case hole >= 0:
			a = netipx.PrefixLastIP(r.Except[hole]).Next()
		case p.Owned(a):
			a = a.Next()
		default:
			return a
		}
	}
}
