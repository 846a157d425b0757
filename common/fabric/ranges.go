// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// claim is a pod range and the node that has it.
type claim struct {
	prefix netip.Prefix
	node   string
	// foreign claims are annotations, others are the spec of Nodes.
	foreign bool
	clash   bool
}

// ranges returns the usable pod ranges by node. Overlapping ranges are not used, because the owner of a
// packet would be ambiguous. The range of a foreign node never displaces one of Isthmus. A range that
// contains the address of a node is not used either: it would cut off that node.
func (p *planner) ranges() map[string][]netip.Prefix {
	var claims []claim
	for _, c := range p.self.PodCIDRs {
		claims = append(claims, claim{prefix: c, node: p.self.Name})
	}
	for _, peer := range p.peers {
		for _, c := range peer.PodCIDRs {
			claims = append(claims, claim{prefix: c, node: peer.Node, foreign: peer.Foreign})
		}
	}
	slices.SortFunc(claims, func(a, b claim) int {
		if c := model.ComparePrefixes(a.prefix, b.prefix); c != 0 {
			return c
		}
		return strings.Compare(a.node, b.node)
	})
	claims = slices.Compact(claims) // a range that a node lists twice counts once
	p.overlaps(claims)
	claims = slices.DeleteFunc(claims, func(c claim) bool { return c.clash })
	p.inhabited(claims)
	usable := make(map[string][]netip.Prefix)
	for _, c := range claims {
		if !c.clash {
			usable[c.node] = append(usable[c.node], c.prefix)
		}
	}
	return usable
}

// overlaps marks the claims that overlap. In sorted order a range follows all ranges that contain it.
func (p *planner) overlaps(claims []claim) {
	var open []int // ranges that contain the current one
	for i := range claims {
		c := &claims[i]
		for len(open) > 0 && !claims[open[len(open)-1]].prefix.Contains(c.prefix.Addr()) {
			open = open[:len(open)-1]
		}
		var equals, mixed bool // whether such an overlap was reported: the innermost one is enough
		for _, o := range slices.Backward(open) {
			outer := &claims[o]
			outer.clash = outer.clash || outer.foreign || !c.foreign
			c.clash = c.clash || c.foreign || !outer.foreign
			switch {
			case outer.foreign != c.foreign && !mixed:
				mixed = true
				thief, owner := outer, c
				if c.foreign {
					thief, owner = c, outer
				}
				p.problem("pod range %s of foreign node %s overlaps %s of node %s: it is not used until OVN-Kubernetes gives the node another range; if no administrator set its annotation, credentials of the node may be stolen",
					thief.prefix, thief.node, owner.prefix, owner.node)
			case outer.foreign == c.foreign && !equals:
				equals = true
				p.problem("pod range %s of node %s and %s of node %s overlap: neither is reachable until the nodes have disjoint ranges", outer.prefix, outer.node, c.prefix, c.node)
			}
		}
		open = append(open, i)
	}
}

// inhabited marks the claims that contain the underlay address of a node. The claims must be disjoint and
// sorted.
func (p *planner) inhabited(claims []claim) {
	mark := func(node string, a netip.Addr) {
		i, exact := slices.BinarySearchFunc(claims, a, func(c claim, a netip.Addr) int { return c.prefix.Addr().Compare(a) })
		if !exact {
			i--
		}
		if i >= 0 && claims[i].prefix.Contains(a) {
			c := &claims[i]
			c.clash = true
			p.problem("pod range %s of node %s contains %s, the address of node %s: it is not used until the node has another range", c.prefix, c.node, a, node)
		}
	}
	for _, a := range p.sources {
		mark(p.self.Name, a)
	}
	for _, peer := range p.peers {
		for _, a := range peer.Addresses {
			mark(peer.Node, a)
		}
	}
}

// merge returns the same set of addresses as disjoint, sorted prefixes, without those that another
// contains.
func merge(all []netip.Prefix) []netip.Prefix {
	sorted := slices.SortedFunc(slices.Values(all), model.ComparePrefixes)
	var out []netip.Prefix
	for _, p := range sorted {
		if n := len(out); n > 0 && out[n-1].Contains(p.Addr()) {
			continue
		}
		out = append(out, p)
	}
	return out
}
