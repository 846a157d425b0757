// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Node is a node of the cluster.
type Node struct {
	Name string
	// PodCIDRs are its current ranges.
	PodCIDRs []netip.Prefix
	// Unread is true if its podCIDRs cannot be parsed. Such a node gets no ranges.
	Unread bool
	// Addresses are its own; no block contains one of the first maxAddresses in the ranges of pods.
	Addresses []netip.Addr
}

// Assignment gives a node without pod ranges its blocks, IPv4 first.
type Assignment struct {
	Node     string
	PodCIDRs []netip.Prefix
}

// Problem is why a node lacks ranges that it should have.
type Problem struct {
	Node string
	// Exhausted is true if the node gets no ranges because none is free.
	Exhausted bool
	Text      string
}

// Usage counts the blocks of a range.
type Usage struct {
	Range netip.Prefix
	// Blocks counts all blocks, Free those that overlap no range in use.
	Blocks, Free uint64
}

// Plan is the list of changes, with problems and usage.
type Plan struct {
	Assignments []Assignment
	Problems    []Problem
	// Usage is the usage after the assignments.
	Usage []Usage
}

// MakePlan plans for all nodes. The Config must be valid. A node gets blocks of all families or none. Nodes
// are served in the order of their names.
func MakePlan(c Config, nodes []Node) Plan {
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	p := Plan{Problems: boundAddresses(c, nodes)}
	pools := makePools(c, nodes)
	for _, n := range nodes {
		if n.Unread || len(n.PodCIDRs) > 0 {
			p.Problems = append(p.Problems, judge(c, n)...)
			continue
		}
		blocks, full := take(c, pools)
		if full != "" {
			p.Problems = append(p.Problems, Problem{Node: n.Name, Exhausted: true, Text: full})
			continue
		}
		p.Assignments = append(p.Assignments, Assignment{Node: n.Name, PodCIDRs: blocks})
	}
	p.Problems = append(p.Problems, clashes(nodes)...)
	for _, pool := range pools {
		p.Usage = append(p.Usage, Usage{Range: pool.prefix, Blocks: pool.count(), Free: pool.free()})
	}
	return p
}

// maxAddresses bounds the addresses of a node that are kept out of blocks.
const maxAddresses = 16

// boundAddresses drops addresses that are in no range of pods, and those of a node beyond maxAddresses: nodes write their own, and
// one of them must not take the blocks of all others.
func boundAddresses(c Config, nodes []Node) (all []Problem) {
	for i, n := range nodes {
		var inside []netip.Addr
		for _, a := range n.Addresses {
			a = a.Unmap().WithZone("")
			if slices.ContainsFunc(c.Ranges, func(r netip.Prefix) bool { return r.Contains(a) }) {
				inside = append(inside, a)
			}
		}
		if len(inside) > maxAddresses {
			all = append(all, Problem{Node: n.Name, Text: fmt.Sprintf("%d of its addresses are in the ranges of pods, and blocks may contain all but the first %d: check who writes the status of this Node", len(inside), maxAddresses)})
			inside = inside[:maxAddresses]
		}
		nodes[i].Addresses = inside
	}
	return all
}

// take allocates the next block of each family. If a family is full it allocates none and names the full
// families.
func take(c Config, pools []*pool) (blocks []netip.Prefix, full string) {
	type found struct {
		pool  *pool
		index uint64
	}
	var all []found
	for _, v6 := range c.families() {
		at := found{}
		var tried []string
		for _, p := range pools {
			if p.prefix.Addr().Is6() != v6 || at.pool != nil {
				continue
			}
			tried = append(tried, p.prefix.String())
			if index, ok := p.next(); ok {
				at = found{p, index}
			}
		}
		if at.pool == nil {
			return nil, fmt.Sprintf("no block of /%d is free in %s: give the controller another --cluster-cidr, or delete unused Node objects", c.mask(v6), strings.Join(tried, ", "))
		}
		all = append(all, at)
	}
	for _, f := range all {
		f.pool.occupy(span{f.index, f.index})
		blocks = append(blocks, f.pool.block(f.index))
	}
	return blocks, ""
}

// judge returns the problems of a node's existing ranges. The plan never changes them, because the API
// server rejects such changes.
func judge(c Config, n Node) (all []Problem) {
	if n.Unread {
		return []Problem{{Node: n.Name, Text: "its podCIDRs cannot be read: delete the Node object; its kubelet creates it again"}}
	}
	for _, v6 := range c.families() {
		if !slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return p.Addr().Is6() == v6 }) {
			family := "IPv4"
			if v6 {
				family = "IPv6"
			}
			all = append(all, Problem{Node: n.Name, Text: fmt.Sprintf("it has pod ranges, but none of %s, and they cannot be changed: drain the node and delete its Node object; its kubelet creates it again", family)})
		}
	}
	return all
}

// clashes returns the nodes whose ranges overlap. Another component assigned those.
func clashes(nodes []Node) (all []Problem) {
	type owned struct {
		prefix netip.Prefix
		node   string
	}
	var ranges []owned
	for _, n := range nodes {
		for _, p := range n.PodCIDRs {
			ranges = append(ranges, owned{p, n.Name})
		}
	}
	// A range sorts after the ranges that contain it.
	slices.SortFunc(ranges, func(a, b owned) int {
		return cmp.Or(a.prefix.Addr().Compare(b.prefix.Addr()), cmp.Compare(a.prefix.Bits(), b.prefix.Bits()), cmp.Compare(a.node, b.node))
	})
	for i := 1; i < len(ranges); i++ {
		if a, b := ranges[i-1], ranges[i]; a.prefix.Overlaps(b.prefix) {
			if a.node != b.node {
				all = append(all, Problem{Node: b.node, Text: fmt.Sprintf("its pod range %s overlaps %s of node %s: drain one of them and delete its Node object", b.prefix, a.prefix, a.node)})
			}
			ranges[i] = widest(a, b, a.prefix.Bits() <= b.prefix.Bits())
		}
	}
	return all
}

func widest[T any](a, b T, first bool) T {
	if first {
		return a
	}
	return b
}
