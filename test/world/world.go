// SPDX-License-Identifier: Apache-2.0

package world

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"go4.org/netipx"
)

// Shape bounds what Random makes.
type Shape struct {
	Pods, Policies int
	// Nodes is how many of the three nodes have pods; 0 means all.
	Nodes int
	// Tiers adds policies of the Admin and Baseline tiers, and Doubts gives them Pass
	// rules of policies that perhaps do not select the pod.
	Tiers, Doubts bool
	// IPv6 gives pods and nodes second addresses and policies IPv6 blocks.
	IPv6 bool
}

// Shapes are small clusters that together use every construct. Tests of the Evaluator and of the
// compiler run all of them.
var Shapes = []Shape{
	{Pods: 6, Policies: 3},
	{Pods: 10, Policies: 8, IPv6: true},
	{Pods: 8, Policies: 8, Tiers: true},
	{Pods: 8, Policies: 10, Tiers: true, IPv6: true},
	{Pods: 8, Policies: 10, Tiers: true, Doubts: true},
}

var (
	keys   = []string{"app", "tier", "env"}
	values = []string{"a", "b", "c", ""}
	names  = []string{"http", "dns", "web"}
	blocks = []string{"0.0.0.0/0", "10.0.0.0/8", "10.0.1.0/24", "10.0.2.0/24", "10.0.2.128/25", "10.0.1.3/32",
		"192.168.0.0/24", "192.168.0.2/32", "8.8.8.0/24", "8.8.8.8/32"}
	blocks6 = []string{"::/0", "fd00::/16", "fd00:1::/64", "fd00:2::3/128", "2001:db8::/32"}
	ports   = []uint16{1, 53, 80, 81, 443, 8080, 65535}
)

type generator struct {
	*rand.Rand
	shape Shape
}

// Random makes a cluster of three nodes from a seed. Equal seeds make equal clusters.
func Random(seed uint64, shape Shape) *model.Snapshot {
	g := &generator{rand.New(rand.NewPCG(seed, 1)), shape}
	var namespaces []*model.Namespace
	for _, n := range []string{"x", "y", "z"} {
		namespaces = append(namespaces, model.NewNamespace(n, g.labels()))
	}
	var nodes []*model.Node
	for i := 1; i <= 3; i++ {
		n := &model.Node{Name: fmt.Sprintf("node%d", i), OS: model.Linux, Labels: model.MakeLabels(g.labels()),
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 0, byte(i)})},
			PodCIDRs:  []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), 0}), 24)}}
		if shape.IPv6 {
			n.Addresses = append(n.Addresses, netip.MustParseAddr(fmt.Sprintf("fd00:ffff::%d", i)))
			n.PodCIDRs = append(n.PodCIDRs, netip.MustParsePrefix(fmt.Sprintf("fd00:%d::/64", i)))
		}
		nodes = append(nodes, n)
	}
	var pods []*model.Pod
	for i := range shape.Pods {
		pods = append(pods, g.pod(i))
	}
	var policies []*model.Policy
	for i := range shape.Policies {
		policies = append(policies, g.policy(i))
	}
	return model.MakeSnapshot(namespaces, nodes, pods, policies)
}

func pick[T any](g *generator, from []T) T { return from[g.IntN(len(from))] }

func (g *generator) chance(percent int) bool { return g.IntN(100) < percent }

func (g *generator) labels() map[string]string {
	m := make(map[string]string)
	for _, k := range keys {
		if g.chance(60) {
			m[k] = pick(g, values)
		}
	}
	return m
}

func (g *generator) pod(i int) *model.Pod {
	nodes := g.shape.Nodes
	if nodes == 0 {
		nodes = 3
	}
	n := 1 + g.IntN(nodes)
	p := &model.Pod{PodID: model.PodID{Namespace: pick(g, []string{"x", "y", "z"}), Name: fmt.Sprintf("p%d", i)},
		Labels: model.MakeLabels(g.labels()), Node: fmt.Sprintf("node%d", n), Created: int64(g.IntN(5)),
		IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(n), byte(2 + i)})}}
	if g.shape.IPv6 {
		p.IPs = append(p.IPs, netip.MustParseAddr(fmt.Sprintf("fd00:%d::%x", n, 2+i)))
	}
	switch {
	case g.chance(5):
		p.HostNetwork = true
		p.IPs = []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 0, byte(n)})}
	case g.chance(5):
		p.Finished = true
	case g.chance(5) && i > 0:
		p.IPs[0] = netip.AddrFrom4([4]byte{10, 0, byte(n), byte(1 + i)}) // possibly the address of another pod
	}
	for _, name := range names {
		if g.chance(50) {
			p.Ports = append(p.Ports, model.NamedPort{Name: name, Protocol: pick(g, model.PortProtocols[:]), Port: pick(g, ports)})
		}
	}
	return p
}

func (g *generator) selector() model.Selector {
	var rs []model.Requirement
	for range g.IntN(3) {
		r := model.Requirement{Key: pick(g, append(keys, "absent")), Operator: model.Operator(g.IntN(4))}
		if r.Operator == model.In || r.Operator == model.NotIn {
			for range 1 + g.IntN(2) {
				r.Values = append(r.Values, pick(g, values))
			}
		}
		rs = append(rs, r)
	}
	return model.MakeSelector(rs...)
}

func (g *generator) podSelector() model.PodSelector {
	s := model.PodSelector{Pods: g.selector()}
	if g.chance(50) {
		s.Namespace = pick(g, []string{"x", "y", "z"})
	} else {
		s.Namespaces = g.selector()
	}
	return s
}

func (g *generator) policy(i int) *model.Policy {
	p := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: pick(g, []string{"x", "y", "z"}), Name: fmt.Sprintf("policy%d", i)},
		Tier: model.TierNetworkPolicy}
	p.Subject = model.PodSelector{Namespace: p.Origin.Namespace, Pods: g.selector()}
	if g.shape.Tiers && g.chance(60) {
		p.Origin = model.Origin{Kind: "ClusterNetworkPolicy", Name: p.Origin.Name}
		p.Tier = pick(g, []model.Tier{model.TierAdmin, model.TierBaseline})
		p.Priority = g.IntN(4)
		p.Subject = g.podSelector()
	}
	for _, d := range model.Directions {
		if p.Tier == model.TierNetworkPolicy {
			p.Isolates[d] = g.chance(60)
		}
		for j := range g.IntN(4) {
			p.Rules[d] = append(p.Rules[d], g.rule(j, p.Tier))
		}
	}
	return p
}

func (g *generator) rule(index int, tier model.Tier) model.Rule {
	r := model.Rule{Index: index, Action: model.ActionAccept}
	if tier != model.TierNetworkPolicy {
		r.Action = pick(g, []model.Action{model.ActionAccept, model.ActionDeny, model.ActionPass})
		if g.shape.Doubts && g.chance(30) {
			r.Action = model.ActionMayPass
		}
	}
	if r.AnyPeer = g.chance(15); !r.AnyPeer {
		for range 1 + g.IntN(3) {
			r.Peers = append(r.Peers, g.peer(tier))
		}
	}
	if r.AnyPort = g.chance(30); !r.AnyPort {
		for range 1 + g.IntN(3) {
			r.Ports = append(r.Ports, g.port(tier))
		}
	}
	return r
}

func (g *generator) peer(tier model.Tier) model.Peer {
	switch n := g.IntN(100); {
	case n < 50:
		return model.Peer{Kind: model.PeerPods, Pods: g.podSelector()}
	case n < 60 && tier != model.TierNetworkPolicy:
		return model.Peer{Kind: model.PeerNodes, Nodes: g.selector()}
	case n < 63 && tier != model.TierNetworkPolicy:
		return model.Peer{Kind: model.PeerUnknown}
	}
	from := blocks
	if g.shape.IPv6 && g.chance(40) {
		from = blocks6
	}
	b := model.IPBlock{CIDR: netip.MustParsePrefix(pick(g, from))}
	for _, s := range from {
		e := netip.MustParsePrefix(s)
		if e.Bits() > b.CIDR.Bits() && b.CIDR.Contains(e.Addr()) && g.chance(30) {
			b.Except = append(b.Except, e)
		}
	}
	return model.Peer{Kind: model.PeerBlock, Block: b}
}

func (g *generator) port(tier model.Tier) model.PortMatch {
	m := model.PortMatch{Protocol: pick(g, model.PortProtocols[:])}
	switch n := g.IntN(100); {
	case n < 30:
		m.Name = pick(g, append(names, "nowhere"))
		if tier != model.TierNetworkPolicy {
			m.Protocol = model.AnyProtocol
		}
	case n < 40:
		m.Last = 65535
	case n < 60:
		m.First, m.Last = pick(g, ports), pick(g, ports)
		if m.First > m.Last {
			m.First, m.Last = m.Last, m.First
		}
	default:
		m.First = pick(g, ports)
		m.Last = m.First
	}
	return m
}

// Endpoints returns an endpoint for every policed pod of a node.
func Endpoints(s *model.Snapshot, node string) map[model.EndpointID]compile.Endpoint {
	all := make(map[model.EndpointID]compile.Endpoint)
	for _, p := range s.Pods.All() {
		if p.Node == node && p.Policed() {
			all[EndpointID(p)] = compile.Endpoint{Pod: p.PodID, IPs: p.IPs}
		}
	}
	return all
}

// EndpointID returns the ID that Endpoints uses for a pod.
func EndpointID(p *model.Pod) model.EndpointID {
	return model.MakeEndpointID(p.Namespace+"-"+p.Name, "eth0")
}

// Probes returns addresses and (protocol, port) pairs that together reach every
// class of a snapshot's flows. Addresses are those of pods and nodes, and the ends
// and neighbours of every prefix. Ports are the ends and neighbours of every range.
func Probes(s *model.Snapshot) (addrs []netip.Addr, at []Port) {
	seen := map[netip.Addr]bool{}
	add := func(a netip.Addr) {
		if a.IsValid() && !a.IsUnspecified() {
			seen[a] = true
		}
	}
	prefix := func(p netip.Prefix) {
		add(p.Addr())
		add(p.Addr().Prev())
		add(p.Addr().Next())
		last := netipx.PrefixLastIP(p)
		add(last)
		add(last.Next())
	}
	edges := map[uint16]bool{0: true, 7: true}
	for _, p := range s.Pods.All() {
		for _, a := range p.IPs {
			add(a)
		}
		for _, n := range p.Ports {
			edges[n.Port], edges[n.Port+1], edges[n.Port-1] = true, true, true
		}
	}
	for _, n := range s.Nodes.All() {
		for _, a := range n.Addresses {
			add(a)
		}
		for _, c := range n.PodCIDRs {
			prefix(c)
		}
	}
	for _, p := range s.Policies.All() {
		for _, rules := range p.Rules {
			for _, r := range rules {
				for _, peer := range r.Peers {
					if peer.Kind == model.PeerBlock {
						prefix(peer.Block.CIDR)
						for _, e := range peer.Block.Except {
							prefix(e)
						}
					}
				}
				for _, m := range r.Ports {
					edges[m.First], edges[m.First-1], edges[m.Last], edges[m.Last+1] = true, true, true, true
				}
			}
		}
	}
	for a := range seen {
		addrs = append(addrs, a)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	for e := range edges {
		for _, p := range model.PortProtocols {
			at = append(at, Port{p, e})
		}
	}
	slices.SortFunc(at, func(a, b Port) int { return int(a.Protocol)<<16 + int(a.Port) - int(b.Protocol)<<16 - int(b.Port) })
	return addrs, append(at, Port{model.ICMP, 0})
}

// Port is what a probe is sent to.
type Port struct {
	Protocol model.Protocol
	Port     uint16
}
