// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// Group is a set of ends of flows that no policy distinguishes in any version of the
// cluster: pods of one namespace, or ranges of addresses, or one address of a node. All its
// addresses are of one family.
type Group struct {
	V6 bool
	// Namespace is that of all pods.
	Namespace string
	Pods      []*Member
	Ranges    []*Range
	// Node is the name of the node that has Addr, if the group is a node.
	Node string
	Addr netip.Addr
	// OS is the operating system that enforces for the pods, by version.
	OS []model.OS

	id    int      // in its family
	sides [2]*pair // by direction; nil if the group has no pods
}

// Member is a pod with one of its addresses.
type Member struct {
	ID model.PodID
	// Addrs and Nodes are the address and the node in each version.
	Addrs []netip.Addr
	Nodes []string
}

// Range is the addresses of Prefix that are not in Except and that belong to no pod and no
// node in any version.
type Range struct {
	Prefix netip.Prefix
	// Except are the longest prefixes inside that are ranges of their own.
	Except []netip.Prefix
	// Unknown: the nodes of some version assign pod addresses from this range, so that an
	// address may belong to an unknown pod.
	Unknown bool
}

// Single reports whether flows within the group are those of one pod to itself, which no
// policy decides.
func (g *Group) Single() bool { return len(g.Pods) == 1 && len(g.Ranges) == 0 }

// Part is a copy of the group with some of its pods.
func (g *Group) Part(pods []*Member) *Group {
	p := *g
	p.Pods = pods
	return &p
}

// end is one address, or one range, before ends are grouped.
type end struct {
	member *Member
	// pods are those of the member, by version.
	pods []*model.Pod
	rng  *Range
	// node has the address, in every version; nodes are its versions.
	node  string
	nodes []*model.Node
	// at is the address or range as a prefix, by version.
	at []netip.Prefix
	// unknown: the range is in a pod range of some node, by version.
	unknown []bool
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// podEnds lists the pods that every version has, by PodID, with their addresses of one
// family.
func (p *Partition) podEnds(v6 bool) []*end {
	var ids []model.PodID
	for id := range p.versions[0].pods {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, model.PodID.Compare)
	var all []*end
	for _, id := range ids {
		e := &end{member: &Member{ID: id}}
		for _, v := range p.versions {
			pod, a, ok := v.address(id, v6)
			if !ok {
				break
			}
			e.pods, e.at = append(e.pods, pod), append(e.at, single(a))
			e.member.Addrs, e.member.Nodes = append(e.member.Addrs, a), append(e.member.Nodes, pod.Node)
		}
		if len(e.at) == len(p.versions) {
			all = append(all, e)
		}
	}
	return all
}

// nodeEnds lists the addresses of one family that belong to the same node in every version,
// in order.
func (p *Partition) nodeEnds(v6 bool) []*end {
	var all []*end
	for a, n := range p.versions[0].owners.Nodes {
		if a.Is6() != v6 {
			continue
		}
		e := &end{node: n.Name}
		for _, v := range p.versions {
			owner, ok := v.owners.Nodes[a]
			if v.owners.Pods[a] != nil || !ok || owner.Name != n.Name {
				break
			}
			e.nodes, e.at = append(e.nodes, owner), append(e.at, single(a))
		}
		if len(e.at) == len(p.versions) {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *end) int { return a.at[0].Addr().Compare(b.at[0].Addr()) })
	return all
}

// address returns the first address of a family of a pod that policies apply to, unless
// another pod owns it.
func (v *version) address(id model.PodID, v6 bool) (*model.Pod, netip.Addr, bool) {
	pod := v.pods[id]
	if pod == nil {
		return nil, netip.Addr{}, false
	}
	for _, a := range pod.IPs {
		if a.Is6() == v6 && v.owners.Pods[a] == pod {
			return pod, a, true
		}
	}
	return nil, netip.Addr{}, false
}
