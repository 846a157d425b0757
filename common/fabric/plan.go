// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// Self is the node that a plan is for.
type Self struct {
	Name     string
	PodCIDRs []netip.Prefix
	// Addresses are those of the Node object.
	Addresses []netip.Addr
	// Underlay are the addresses of the interface to other nodes, with the prefix lengths of its segment.
	Underlay []netip.Prefix
	// MTU is that of this interface, in bytes.
	MTU int
}

// Plan is the desired state of a node's fabric. It is complete and sorted: equal inputs, in any order, give
// equal plans.
type Plan struct {
	// Hops lead to the pods of other nodes, sorted by prefix; disjoint.
	Hops []Hop
	// Returns lead to Linux nodes that are reached by tunnel. Only packets of pods use them: replies to
	// packets that such a node sent from its own address through the tunnel.
	Returns []Hop
	// Tunnel is this node's tunnel endpoint; nil if it has none.
	Tunnel *Tunnel
	// Senders are the nodes that send by tunnel, sorted by name.
	Senders []Sender
	// Own are this node's pod ranges. An address in them without a pod is unreachable.
	Own []netip.Prefix
	// MTU is that of the pods, in bytes.
	MTU int
	// NAT is nil without masquerading.
	NAT *NAT
	// Problems are the ranges or nodes that cannot be reached, each with the remedy.
	Problems []string
}

// Hop is the next hop to a range of addresses.
type Hop struct {
	Prefix netip.Prefix
	Node   string
	OS     model.OS
	// Via is Routes or VXLAN.
	Via Mode
	// Underlay is the other node's address: the gateway of a route, or the destination of tunneled packets.
	Underlay netip.Addr
	// VTEP is the destination MAC of the inner Ethernet header of tunneled packets.
	VTEP model.MAC
}

// Gateway returns the next hop of a tunneled range, as its neighbour entry names it. The address need not
// exist on any interface.
func (h Hop) Gateway() netip.Addr { return h.Prefix.Addr() }

// Sender is a node that sends by tunnel. Packets of other senders must not arrive by tunnel.
type Sender struct {
	// Node has the names of several nodes, with commas, if these have the same address.
	Node string
	// Underlay are the source addresses of its tunneled packets.
	Underlay []netip.Addr
	// Sources are the allowed inner sources: those of its pods and, on Linux, its own. Both are sorted.
	Sources []netip.Prefix
}

// Tunnel is this node's tunnel endpoint.
type Tunnel struct {
	VNI   uint32
	Port  uint16
	Local netip.Addr
	MAC   model.MAC
	MTU   int
	// Sources are the node's own addresses, from which it sends to pods of other nodes.
	Sources []netip.Addr
}

// NAT configures masquerading.
type NAT struct {
	// Sources are masqueraded unless the destination is in Keep. Both are disjoint and sorted.
	Sources, Keep []netip.Prefix
}

// notForwarded are the destinations that are never masqueraded: multicast and link-local addresses.
var notForwarded = []netip.Prefix{
	netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("255.255.255.255/32"),
	netip.MustParsePrefix("ff00::/8"), netip.MustParsePrefix("fe80::/10"),
}

// Make makes the plan of a node. The Config must be valid.
func Make(c Config, self Self, peers []model.Route) *Plan {
	p := planner{cfg: c, self: self, plan: &Plan{}, hidden: make(map[string]bool)}
	p.peers = slices.SortedFunc(slices.Values(peers), func(a, b model.Route) int { return strings.Compare(a.Node, b.Node) })
	p.underlay()
	p.macs()
	p.endpoints()
	usable := p.ranges()
	if c.Mode != None {
		for _, peer := range p.peers {
			p.reach(peer, usable[peer.Node])
		}
		p.join()
		p.plan.Own = usable[self.Name]
		slices.SortFunc(p.plan.Own, model.ComparePrefixes)
	}
	p.masquerade()
	byPrefix := func(a, b Hop) int { return model.ComparePrefixes(a.Prefix, b.Prefix) }
	slices.SortFunc(p.plan.Hops, byPrefix)
	slices.SortFunc(p.plan.Returns, byPrefix)
	slices.Sort(p.plan.Problems)
	p.plan.Problems = slices.Compact(p.plan.Problems)
	return p.plan
}

type planner struct {
	cfg   Config
	self  Self
	peers []model.Route
	plan  *Plan
	// sources are this node's underlay addresses, one per family.
	sources []netip.Addr
	outer6  bool
	// hidden are the nodes to which pod traffic is masqueraded.
	hidden map[string]bool
	// owners maps the MACs derived from names to nodes, announced those from annotations.
	owners    map[model.MAC]string
	announced map[model.MAC][]model.Route
	// listed maps the addresses of nodes to those that have them, published those from annotations.
	listed, published map[netip.Addr][]string
}

func (p *planner) problem(format string, args ...any) {
	p.plan.Problems = append(p.plan.Problems, fmt.Sprintf(format, args...))
}

// underlay finds this node's own addresses and tunnel endpoint. It prefers the addresses of the Node
// object, because other nodes use them.
func (p *planner) underlay() {
	for _, v6 := range []bool{false, true} {
		if a, ok := p.source(v6); ok {
			p.sources = append(p.sources, a)
		}
	}
	if len(p.sources) > 0 {
		p.outer6 = p.sources[0].Is6()
	}
	p.plan.MTU = p.cfg.PodMTU(p.self.MTU, p.outer6)
	if !p.cfg.Mode.Tunnels() {
		return
	}
	if len(p.sources) == 0 {
		p.problem("node %s has no underlay address: assign one to its uplink", p.self.Name)
		return
	}
	p.plan.Tunnel = &Tunnel{VNI: p.cfg.VNI, Port: p.cfg.Port, Local: p.sources[0], MAC: VTEP(p.self.Name), MTU: p.plan.MTU, Sources: p.sources}
	if over := overhead(p.outer6); p.self.MTU > 0 && p.plan.MTU+over > p.self.MTU {
		p.problem("pods' MTU %d and %d bytes of VXLAN do not fit the uplink's MTU %d: raise the uplink's MTU or set a lower --mtu", p.plan.MTU, over, p.self.MTU)
	}
}

func overhead(outer6 bool) int {
	if outer6 {
		return overhead6
	}
	return overhead4
}

func (p *planner) source(v6 bool) (netip.Addr, bool) {
	var first netip.Addr
	for _, u := range p.self.Underlay {
		if u.Addr().Is6() != v6 {
			continue
		}
		if slices.Contains(p.self.Addresses, u.Addr()) {
			return u.Addr(), true
		}
		if !first.IsValid() {
			first = u.Addr()
		}
	}
	return first, first.IsValid()
}

// onLink reports whether an address is on this node's segment.
func (p *planner) onLink(a netip.Addr) bool {
	return slices.ContainsFunc(p.self.Underlay, func(u netip.Prefix) bool { return u.Masked().Contains(a) })
}

// reach plans the hops to the pod ranges of one node.
func (p *planner) reach(peer model.Route, ranges []netip.Prefix) {
	theirs := Mode(peer.Fabric)
	switch {
	case theirs == "":
		theirs = p.cfg.Mode
	case !theirs.Valid():
		p.problem("node %s: annotation isthmus.dev/fabric %q is not one of auto, routes, vxlan, none: correct it", peer.Node, shorten(peer.Fabric))
		return
	}
	if theirs == None || len(ranges) == 0 {
		return
	}
	if p.cfg.Mode == VXLAN && theirs == Routes || p.cfg.Mode == Routes && theirs == VXLAN {
		p.problem("pods of node %s cannot be reached: its fabric is %s and that of %s is %s: use one on both, or auto", peer.Node, theirs, p.self.Name, p.cfg.Mode)
		return
	}
	var tunneled []netip.Prefix
	for _, cidr := range ranges {
		h := Hop{Prefix: cidr, Node: peer.Node, OS: peer.OS}
		direct, has := addressOf(peer, cidr.Addr().Is6())
		near := has && p.onLink(direct)
		switch mode := strictest(p.cfg.Mode, theirs); {
		case mode == Auto && near, mode == Routes && near:
			h.Via, h.Underlay = Routes, direct
		case mode == Routes && has:
			continue // the network's routers forward there
		case mode == Routes:
			p.problem("pod range %s of node %s cannot be reached: the node has no %s address: add one to its status.addresses", cidr, peer.Node, family(cidr.Addr().Is6()))
			continue
		default:
			if !p.tunnel(&h, peer) {
				continue
			}
		}
		if slices.Contains(p.listed[h.Underlay], p.self.Name) {
			continue // packets would come back; reported as a shared address
		}
		if h.Via == VXLAN {
			tunneled = append(tunneled, cidr)
		}
		p.plan.Hops = append(p.plan.Hops, h)
	}
	if len(tunneled) > 0 {
		p.returns(peer)
		p.sender(peer, tunneled)
	}
}

// sender plans the allowed sources of a node's tunneled packets, for all its known addresses.
func (p *planner) sender(peer model.Route, ranges []netip.Prefix) {
	s := Sender{Node: peer.Node, Sources: slices.Clone(ranges)}
	for _, a := range peer.Addresses {
		if a.Is6() == p.outer6 {
			s.Underlay = append(s.Underlay, a)
		}
		if !hostOutside(peer) && !p.shared(a) {
			s.Sources = append(s.Sources, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	if peer.Tunnel.IsValid() && peer.Tunnel.Is6() == p.outer6 && !slices.Contains(s.Underlay, peer.Tunnel) {
		s.Underlay = append(s.Underlay, peer.Tunnel)
	}
	slices.SortFunc(s.Underlay, netip.Addr.Compare)
	slices.SortFunc(s.Sources, model.ComparePrefixes)
	p.plan.Senders = append(p.plan.Senders, s)
}

// join makes one sender of those that share an address, because packets from there may be those of each. The sender has no other
// address: from there, one of these nodes could send as the others.
func (p *planner) join() {
	var all []Sender
	joined := make(map[netip.Addr]int)
	for _, s := range p.plan.Senders {
		if i := slices.IndexFunc(s.Underlay, p.shared); i >= 0 {
			a := s.Underlay[i]
			if first, ok := joined[a]; ok {
				all[first].Node += "," + s.Node
				all[first].Sources = append(all[first].Sources, s.Sources...)
				slices.SortFunc(all[first].Sources, model.ComparePrefixes)
				continue
			}
			joined[a], s.Underlay = len(all), []netip.Addr{a}
		}
		all = append(all, s)
	}
	p.plan.Senders = all
}

// strictest returns the mode of a pair of nodes whose modes are compatible.
func strictest(a, b Mode) Mode {
	if a == Auto {
		return b
	}
	return a
}

// tunnel completes a hop through the tunnel. It reports false if the tunnel cannot be used.
func (p *planner) tunnel(h *Hop, peer model.Route) bool {
	if p.plan.Tunnel == nil {
		return false // already reported
	}
	outer, ok := addressOf(peer, p.outer6)
	if peer.Tunnel.IsValid() && peer.Tunnel.Is6() == p.outer6 {
		if why := p.claimed(peer); why != "" {
			p.problem("pod range %s of node %s cannot be reached: the node has the annotation isthmus.dev/vtep-address %s, and %s: correct the annotation; if no administrator set it, the credentials of the node's agent may be stolen",
				h.Prefix, peer.Node, peer.Tunnel, why)
			return false
		}
		outer, ok = peer.Tunnel, true
	}
	if !ok {
		p.problem("pod range %s of node %s cannot be reached: tunnels of node %s use %s, but it has no such address: add one to its status.addresses",
			h.Prefix, peer.Node, p.self.Name, family(p.outer6))
		return false
	}
	if t := p.plan.Tunnel; peer.OS == model.Windows && (t.VNI > MaxWindowsVNI || t.Port != WindowsPort) {
		p.problem("pod range %s of node %s cannot be reached: Windows supports VNI %d to %d and UDP port %d, not VNI %d and port %d: change --vni and --vxlan-port on the agents of all nodes",
			h.Prefix, peer.Node, minVNI, MaxWindowsVNI, WindowsPort, t.VNI, t.Port)
		return false
	}
	mac := peer.VTEP
	if mac == (model.MAC{}) {
		if peer.OS == model.Windows {
			p.problem("pod range %s of node %s cannot be reached: HNS chose the MAC of its tunnels and the node has no annotation isthmus.dev/vtep-mac: wait until its agent runs in overlay mode", h.Prefix, peer.Node)
			return false
		}
		mac = VTEP(peer.Node)
	} else if why := p.disputed(peer); why != "" {
		annotation := "isthmus.dev/vtep-mac"
		if peer.Foreign {
			annotation = model.AnnotationOverlayMAC
		}
		p.problem("pod range %s of node %s cannot be reached: the node has the annotation %s %s, and %s: correct the annotation; if no administrator set it, the credentials of the node's agent may be stolen",
			h.Prefix, peer.Node, annotation, mac, why)
		return false
	}
	h.Via, h.Underlay, h.VTEP = VXLAN, outer, mac
	return true
}

// hostOutside reports whether the host of a node is not in its overlay. Hosts of OVN-Kubernetes send from an
// address of their pod range.
func hostOutside(peer model.Route) bool { return peer.OS == model.Windows || peer.Foreign }

// returns plans the routes of pods to the addresses of a node across a tunnel. Pod traffic to a host outside of
// the overlay is masqueraded.
func (p *planner) returns(peer model.Route) {
	if hostOutside(peer) {
		p.hidden[peer.Node] = true
		return
	}
	for _, v6 := range []bool{false, true} {
		a, ok := addressOf(peer, v6)
		if !ok || p.shared(a) {
			continue
		}
		h := Hop{Prefix: netip.PrefixFrom(a, a.BitLen()), Node: peer.Node, OS: peer.OS}
		if p.tunnel(&h, peer) {
			p.plan.Returns = append(p.plan.Returns, h)
		}
	}
}

// masquerade plans the masquerading of pod traffic.
func (p *planner) masquerade() {
	if !p.cfg.Masquerade || len(p.self.PodCIDRs) == 0 {
		return
	}
	keep := slices.Concat(notForwarded, p.cfg.Exceptions, p.self.PodCIDRs)
	for _, a := range p.self.Addresses {
		keep = append(keep, netip.PrefixFrom(a, a.BitLen()))
	}
	for _, peer := range p.peers {
		keep = append(keep, peer.PodCIDRs...)
		if p.hidden[peer.Node] {
			continue
		}
		for _, a := range peer.Addresses {
			keep = append(keep, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	p.plan.NAT = &NAT{Sources: merge(p.self.PodCIDRs), Keep: merge(keep)}
}

func addressOf(r model.Route, v6 bool) (netip.Addr, bool) {
	for _, a := range r.Addresses {
		if a.Is6() == v6 {
			return a, true
		}
	}
	return netip.Addr{}, false
}

func family(v6 bool) string {
	if v6 {
		return "IPv6"
	}
	return "IPv4"
}

func shorten(s string) string {
	if len(s) > 40 {
		return s[:37] + "..."
	}
	return s
}
