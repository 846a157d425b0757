// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// Endpoint is a local attachment to compile a Table for.
type Endpoint struct {
	Pod model.PodID
	// IPs are the addresses that the endpoint really has. They count for its
	// pod even where the API does not show them yet.
	IPs []netip.Addr
}

// Input is everything that Compile looks at.
type Input struct {
	Snapshot *model.Snapshot
	// Node is the name of the node to compile for.
	Node      string
	Endpoints map[model.EndpointID]Endpoint
	// Previous, if given, is the State that Compile returned before for this
	// node: classes that still mean the same keep their numbers, so that the
	// backend has little to change.
	Previous *model.State
}

// Compile works out what a node should enforce. It is a pure function; without
// Previous equal inputs give equal States, with it they give States that are
// equal up to the numbers of classes. Every construct that cannot be compiled
// exactly is returned as an Unsupported and fails closed.
func Compile(in Input) (*model.State, []model.Unsupported) {
	snapshot := withEndpoints(in)
	c := &compiler{
		snapshot: snapshot,
		node:     in.Node,
		previous: in.Previous,
		profiles: make(map[model.TableID]*profile),
		terms:    newTerms(),
		tables:   make(map[model.TableID]*model.Table),
	}
	if c.previous == nil {
		c.previous = &model.State{}
	}
	endpoints := c.selectPolicies(in.Endpoints)
	c.collectTerms()
	c.classifyPorts()
	c.classifyAddresses()
	c.buildTables()
	var podCIDRs []netip.Prefix
	if n, ok := snapshot.Nodes.Get(in.Node); ok {
		podCIDRs = n.PodCIDRs
	}
	return &model.State{
		Node:          in.Node,
		PodCIDRs:      podCIDRs,
		Endpoints:     endpoints,
		Tables:        c.tables,
		Addresses:     c.addresses,
		Prefixes:      c.prefixes,
		Ports:         c.ports,
		Routes:        routes(snapshot, in.Node),
		PeerClasses:   c.peerInfo,
		PeerTerms:     c.vocabulary.terms,
		PeerNames:     c.vocabulary.names,
		PortClasses:   c.portInfo,
		NextPeerClass: c.nextPeer,
	}, c.unsupported
}

// compiler is the working state of one Compile.
type compiler struct {
	snapshot *model.Snapshot
	node     string
	previous *model.State

	profiles map[model.TableID]*profile
	terms    *terms

	portClasses []portClass // index: model.PortClass; the zero element is OtherPorts
	ports       []model.PortRange
	portInfo    []model.PortClassInfo

	vocabulary  vocabulary // of peers
	peerClasses []*peerClass
	addresses   model.Map[netip.Addr, model.PeerClass]
	prefixes    []model.PrefixClass
	peerInfo    []model.PeerClassInfo
	nextPeer    model.PeerClass

	tables      map[model.TableID]*model.Table
	unsupported []model.Unsupported
}

// withEndpoints gives the pods of the endpoints the addresses that the
// endpoints really have.
func withEndpoints(in Input) *model.Snapshot {
	s := *in.Snapshot
	for _, e := range in.Endpoints {
		pod, ok := s.Pods.Get(e.Pod)
		if !ok || len(e.IPs) == 0 || slices.Equal(pod.IPs, e.IPs) || pod.HostNetwork {
			continue
		}
		local := *pod
		local.IPs = e.IPs
		s.Pods = s.Pods.With(e.Pod, &local)
	}
	return &s
}

// routes lists the other nodes that have both an address and a pod range.
func routes(s *model.Snapshot, self string) []model.Route {
	var all []model.Route
	for _, n := range s.Nodes.All() {
		if n.Name == self || len(n.PodCIDRs) == 0 {
			continue
		}
		r := model.Route{Node: n.Name, OS: n.OS, PodCIDRs: n.PodCIDRs}
		for _, v6 := range []bool{false, true} {
			if a, ok := n.Address(v6); ok {
				r.Addresses = append(r.Addresses, a)
			}
		}
		if len(r.Addresses) > 0 {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b model.Route) int { return strings.Compare(a.Node, b.Node) })
	return all
}
