// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"net/netip"
	"slices"
)

// FromPod decides a packet that a pod sends.
func (n *Node) FromPod(device int, p *Packet) Verdict {
	pod := n.Pods[device]
	switch {
	case pod == nil:
		return drop("no pod has this interface")
	case p.ForeignMAC:
		return drop("source MAC")
	case p.Ether == "arp":
		return n.arp(pod, p)
	case p.Ether != "":
		return drop("neither IP nor ARP")
	case p.malformed():
		return drop("malformed")
	case p.sourceRouted() || p.hasRoutingHeader():
		return drop("a route to other destinations")
	}
	if discovery, router := p.IsDiscovery(); discovery {
		if !router && n.discovers(pod, p) {
			return Verdict{Fate: ToStack, Why: "neighbour discovery"}
		}
		return drop("neighbour discovery beyond the link, or of a router")
	}
	w := &walk{pod: pod, packet: p, dir: Egress}
	w.src, w.dst = p.Ends()
	if p.isOddError() {
		return drop("error that no pod sends")
	}
	if p.Fragment == LaterFragment {
		var known bool
		if w.src, w.dst, known = n.ports(pod, Egress, p); !known {
			return drop("later fragment before the first")
		}
	}
	if slices.Contains(n.TunnelProtocols, p.Proto) && !n.isPod(p.Dst) {
		return drop("a tunnel directly in IP")
	}
	if !pod.has(p.Src) || p.Src.IsUnspecified() {
		return drop("source address")
	}
	if p.Dst.Is4() && p.Dst.IsLoopback() {
		return drop("loopback")
	}
	if p.toLink() {
		return drop("address of the link")
	}
	w.k, w.from = KeyOf(w.src, w.dst, p.Proto)
	var v Verdict
	switch {
	case p.Src == p.Dst:
		v = Verdict{Fate: ToStack, Why: "to itself"}
	case p.IsError():
		v = n.sendError(w)
	default:
		v = n.send(w)
	}
	if p.Fragment == FirstFragment && v.Fate != Dropped {
		n.noteDatagram(pod, Egress, p, w.src, w.dst)
	}
	if v.Fate == ToStack && v.Record == 0 && w.translatable() && !n.Shared {
		v.Record = n.leave(w, true).Record // a Service may have the address of a pod
	}
	return v
}

// siteRouters are all routers of a site (RFC 4291, 2.7.1), of which a Linux host that forwards is one.
var siteRouters = netip.MustParseAddr("ff05::2")

// toLink reports whether a packet goes to an address of the link between a pod and its node.
func (p *Packet) toLink() bool {
	return p.Dst.Is6() && p.Dst.IsLinkLocalUnicast() || p.Dst.IsLinkLocalMulticast() || p.Dst == netip.AddrFrom4([4]byte{255, 255, 255, 255}) ||
		p.Dst == siteRouters
}

// arp allows ARP messages in which the pod claims only its own addresses and MAC.
func (n *Node) arp(pod *Pod, p *Packet) Verdict {
	if _, ok := pod.addr(false); !ok || p.ARPAddress == "foreign" || p.ARPForeign || p.Operation != 1 && p.Operation != 2 || p.Cut > 0 {
		return drop("ARP for others")
	}
	return Verdict{Fate: ToStack, Why: "ARP for itself"}
}

// discovers reports whether a neighbour discovery message of a pod is for its own link, and claims only its own
// addresses.
func (n *Node) discovers(pod *Pod, p *Packet) bool {
	if !p.Dst.IsLinkLocalUnicast() && !p.Dst.IsLinkLocalMulticast() && !n.isOwn(p.Dst) {
		return false
	}
	return p.Src.IsUnspecified() || p.Src == pod.linkLocal() || pod.has(p.Src)
}

// send decides a packet of a flow.
func (n *Node) send(w *walk) Verdict {
	p := w.packet
	outside := !n.isPod(w.dst.Addr())
	if p.Opens() {
		if outside && w.translatable() {
			return n.leave(w, false)
		}
		if !n.evaluate(w) {
			return drop("egress policy")
		}
		w.asked = true
	}
	f := n.find(w.k)
	if f == nil {
		if outside && w.translatable() {
			return n.leave(w, false)
		}
		return n.open(w)
	}
	own := f.authorised[w.from]
	current := own.epoch == w.pod.Epoch
	pends := outside && (!current || !own.any())
	if f.translated {
		pends = !n.Shared || !current || p.Proto != TCP
	}
	if w.translatable() && !own.accepted && pends {
		f.closes(p, w.from, true)
		return n.leave(w, false)
	}
	if !n.allowKnown(w, f) {
		return drop("egress policy of a known flow")
	}
	v := Verdict{Fate: ToStack, Why: "known flow"}
	switch {
	case f.direct:
		v = n.allowPeer(w, f)
	case f.remote:
		v = Verdict{Fate: ToNode, Why: "known flow"}
		if route := n.route(w.dst.Addr()); route == nil || !n.forwardable(p) || p.Length() > n.MTU {
			v.Fate = ToStack
		}
	case f.outside && w.translatable() && !n.Shared:
		answers := f.authorised[w.from].accepted
		if v.Fate != Dropped {
			f.passed(n.now, p, w.from, true)
		}
		return n.leave(w, answers)
	}
	if v.Fate != Dropped {
		f.passed(n.now, p, w.from, true)
	}
	return v
}

// starts reports whether a packet may start a flow on the fast path.
func (w *walk) starts() bool {
	return w.packet.Opens() || w.packet.Proto == UDP && !w.packet.IsError()
}

// open decides a new flow of a pod, for both ends if both are on this node.
func (n *Node) open(w *walk) Verdict {
	if !w.translatable() && slices.Contains(n.Broadcast, w.dst.Addr()) {
		return drop("broadcast or anycast to the node")
	}
	if !n.evaluate(w) {
		return drop("egress policy")
	}
	peer := n.reachable(w.dst.Addr())
	switch {
	case w.starts() && !w.pod.Limited && peer != nil:
		if !n.allows(peer, Ingress, w.src.Addr(), w.packet.Proto, w.dst.Port()) {
			return drop("ingress policy of the receiver")
		}
		f := n.create(w.k, w.from, w.pod.Slot)
		f.authorised[w.from] = authorisation{opened: true, epoch: w.pod.Epoch}
		f.authorised[1-w.from] = authorisation{accepted: true, epoch: peer.Epoch}
		f.direct = true
		f.slots[1-w.from] = peer.Slot
		return Verdict{Fate: ToPod, Pod: peer, Why: "new flow between pods"}
	case w.starts() && !w.pod.Limited && n.startsRemote(w.packet, w.dst.Addr(), 0):
		f := n.create(w.k, w.from, w.pod.Slot)
		f.authorised[w.from] = authorisation{opened: true, epoch: w.pod.Epoch}
		f.remote = true
		f.device[1-w.from] = n.route(w.dst.Addr()).Device
		return Verdict{Fate: ToNode, Why: "new flow to another node"}
	}
	f := n.create(w.k, w.from, w.pod.Slot)
	f.authorised[w.from] = authorisation{opened: true, epoch: w.pod.Epoch}
	f.outside = !n.isPod(w.dst.Addr())
	return Verdict{Fate: ToStack, Why: "new flow"}
}

// forwardable reports whether a router would forward the packet unchanged except for its hop limit.
func (n *Node) forwardable(p *Packet) bool {
	if p.Fragment != Whole || p.HopLimit() <= 1 || p.Options > 0 || len(p.Extensions) > 0 {
		return false
	}
	return !p.V6() || p.Proto == TCP || p.Proto == UDP || p.Proto == ICMPv6
}

// startsRemote reports whether a flow with an address on another node may use the fast path. device is the device
// on which it arrived, or 0.
func (n *Node) startsRemote(p *Packet, remote netip.Addr, device int) bool {
	route := n.route(remote)
	src, dst := p.Ends()
	if n.Tracked != nil && n.Tracked(src, dst, p.Proto) {
		return false // the stack may have translated it
	}
	return (p.Proto == TCP || p.Proto == UDP) && route != nil && route.Direct && (device == 0 || device == route.Device) &&
		n.forwardable(p) && (device != 0 || p.Length() <= n.MTU)
}

// sendError decides an ICMP error that a pod sends: it may quote packets that the pod received.
func (n *Node) sendError(w *walk) Verdict {
	p := w.packet
	f, k, from, ok := n.quoted(p)
	if ok && p.Dst == k.end[from].Addr() && p.Src == k.end[1-from].Addr() && n.mayQuote(w.pod, f, k, 1-from) && n.mayErr(w.pod, Egress) {
		if f.direct {
			peer := n.reachable(p.Dst)
			if r := f.authorised[from]; peer != nil && r.holds() && r.epoch == peer.Epoch && f.slots[from] == peer.Slot {
				return Verdict{Fate: ToPod, Pod: peer, Why: "error about a flow between pods"}
			}
			return Verdict{Fate: ToStack, Why: "error about a flow"}
		}
		if f.remote && n.forwardable(p) && p.Length() <= n.MTU {
			return Verdict{Fate: ToNode, Why: "error about a flow to another node"}
		}
		return Verdict{Fate: ToStack, Why: "error about a flow"}
	}
	if n.sendsOn(p) {
		return drop("error that the stack may translate")
	}
	if !n.evaluate(w) {
		return drop("egress policy")
	}
	return Verdict{Fate: ToStack, Why: "egress policy allows errors"}
}

// sendsOn reports whether the stack may send an ICMP error of a pod to another address than its own. It looks up TCP and UDP
// only.
func (n *Node) sendsOn(p *Packet) bool {
	q := p.Quote
	if !p.Quotes() || q.Proto == 0 || q.Proto == SCTP {
		return true
	}
	if q.Proto != TCP && q.Proto != UDP || n.Receives == nil {
		return false
	}
	src, dst := q.Ends()
	to, known := n.Receives(dst, src, q.Proto)
	return known && to != p.Dst
}

// mayQuote reports whether policy still allows the flow for the pod at this end.
func (n *Node) mayQuote(pod *Pod, f *flow, k Key, end int) bool {
	r := f.authorised[end]
	if !r.any() {
		return false
	}
	if r.epoch == pod.Epoch {
		return !r.revoked
	}
	return n.revalidate(pod, f, k, end)
}

// mayErr charges an ICMP error to the budget of a pod, and reports whether there was budget left (ADR 35).
func (n *Node) mayErr(pod *Pod, dir Direction) bool {
	at := place{slot: pod.Slot, dir: dir}
	if n.errors[at] >= n.Errors {
		return false
	}
	n.errors[at]++
	return true
}

// Quotes reports whether an ICMP error quotes enough of a packet to find its flow: no extension headers of IPv6, and all ports.
func (p *Packet) Quotes() bool {
	q, left := p.Quote, p.Length()
	if p.Cut > 0 {
		left = min(left, p.Cut)
	}
	if q.V6() && (len(q.Extensions) > 0 || q.Fragment != Whole || slices.Contains([]uint8{0, 43, 44, 51, 59, 60}, q.Proto)) {
		return false
	}
	if !q.V6() && q.Fragment == LaterFragment || left < p.headers()+p.quotedRead() {
		return false
	}
	return !p.Short || !HasPorts(q.Proto) && !q.isICMP()
}

// quoted returns the flow of the packet that an error quotes, and the end that sent that packet.
func (n *Node) quoted(p *Packet) (f *flow, k Key, from int, known bool) {
	if !p.Quotes() {
		return nil, k, 0, false
	}
	q := p.Quote
	src, dst := q.Ends()
	k, from = KeyOf(src, dst, q.Proto)
	f = n.find(k)
	return f, k, from, f != nil
}
