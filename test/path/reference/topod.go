// SPDX-License-Identifier: Apache-2.0

package reference

import "net/netip"

// Sender is the sender of a packet according to connection tracking: the original client, if the stack
// masqueraded it.
type Sender struct {
	From netip.AddrPort
	// Reached is true if the sender opened the flow, so that the pod answers it.
	Reached bool
}

// ToPod decides a packet that the stack delivers to a pod. device is the device on which it arrived. sender asks
// connection tracking for the sender of a packet with these ends; nil is none. A later fragment has the ends of the
// datagram that the pod's program knows by its identification.
func (n *Node) ToPod(pod *Pod, device int, p *Packet, sender func(p *Packet, src, dst netip.AddrPort) *Sender) Verdict {
	switch {
	case p.Ether == "arp":
		return Verdict{Fate: ToStack, Why: "ARP comes from the host only"}
	case p.Ether != "":
		return drop("neither IP nor ARP")
	case p.malformed():
		return drop("malformed")
	case p.sourceRouted():
		return drop("a route to other destinations")
	}
	if discovery, _ := p.IsDiscovery(); discovery && device == Host {
		return Verdict{Fate: ToStack, Why: "neighbour discovery of the host"}
	}
	w := &walk{pod: pod, packet: p, dir: Ingress, device: device, host: device == Host}
	w.src, w.dst = p.Ends()
	if p.Fragment == LaterFragment {
		var known bool
		if w.src, w.dst, known = n.ports(pod, Ingress, p); !known {
			return drop("later fragment before the first")
		}
	}
	w.k, w.from = KeyOf(w.src, w.dst, p.Proto)
	w.sender = sender(p, w.src, w.dst)
	var v Verdict
	switch {
	case p.Src == p.Dst && device != Host && device != pod.Device:
		v = drop("not from itself")
	case p.Src == p.Dst:
		v = Verdict{Fate: ToStack, Why: "from itself"}
	case p.IsError():
		v = n.receiveError(w)
	default:
		v = n.receive(w)
	}
	if p.Fragment == FirstFragment && v.Fate != Dropped {
		n.noteDatagram(pod, Ingress, p, w.src, w.dst)
	}
	return v
}

// arrives reports whether the source of a packet is valid for its device, and determines the sender.
func (n *Node) arrives(w *walk) bool {
	src := w.packet.Src
	w.host, w.client = w.device == Host, netip.AddrPort{}
	if w.host {
		if w.sender != nil && w.sender.Reached && w.sender.From != w.src && !w.packet.IsError() {
			w.client = w.sender.From
		}
		return true
	}
	from := n.Pods[w.device]
	w.exchanged = n.isOwn(src)
	if from != nil {
		w.exchanged = !from.has(src)
	}
	if w.exchanged {
		if w.sender == nil || w.sender.From.Addr() == src {
			return false
		}
		src = w.sender.From.Addr()
		if w.sender.Reached {
			w.client = w.sender.From
		}
	} else if from != nil && w.sender != nil && w.sender.Reached && w.sender.From != w.src && !w.packet.IsError() {
		w.client = w.sender.From // the stack replaced the port
	}
	if from != nil {
		return from.has(src)
	}
	if n.isHere(src) {
		return false
	}
	route := n.route(src)
	return route == nil || route.Device == w.device
}

// receive decides a packet of a flow.
func (n *Node) receive(w *walk) Verdict {
	p := w.packet
	if p.Opens() {
		if !n.arrives(w) {
			return drop("source cannot come by this device")
		}
		if !n.evaluate(w) {
			return drop("ingress policy")
		}
		w.asked = true
	}
	f := n.find(w.k)
	if f == nil {
		return n.reached(w)
	}
	if p.Opens() && f.state == closing {
		f.bypassEnds()
	}
	if p.Proto == UDP {
		f.remote = false
	}
	if f.direct || f.client.IsValid() || w.client.IsValid() || f.device[w.from] != w.device {
		if !n.arrives(w) {
			return drop("source cannot come by this device")
		}
		w.recognise(f)
	}
	if !n.allowKnown(w, f) {
		return drop("ingress policy of a known flow")
	}
	f.passed(n.now, p, w.from, false)
	return Verdict{Fate: ToStack, Why: "known flow"}
}

// recognise removes the authorisation of a flow whose sender has changed.
func (w *walk) recognise(f *flow) {
	had := f.authorised[w.end()]
	if f.client != w.client || !w.host && had.ofHost {
		now := authorisation{epoch: had.epoch}
		if !had.revoked {
			now.opened = had.opened
		}
		f.authorised[w.end()], f.client = now, w.client
	}
	if !f.direct {
		f.device[w.from] = w.device
	}
}

// reached decides a new flow to the pod.
func (n *Node) reached(w *walk) Verdict {
	if !w.asked && !n.arrives(w) {
		return drop("source cannot come by this device")
	}
	if !n.evaluate(w) {
		return drop("ingress policy")
	}
	f := n.create(w.k, w.from, w.pod.Slot)
	f.authorised[1-w.from] = authorisation{accepted: true, ofHost: w.host, epoch: w.pod.Epoch}
	f.device[w.from], f.client = w.device, w.client
	f.outside = !n.isPod(w.src.Addr())
	return Verdict{Fate: ToStack, Why: "new flow"}
}

// receiveError decides an ICMP error to a pod: it may quote packets that the pod sent.
func (n *Node) receiveError(w *walk) Verdict {
	p := w.packet
	if !n.arrives(w) {
		return drop("source cannot come by this device")
	}
	f, k, from, ok := n.quoted(p)
	mine := ok && p.Dst == k.end[from].Addr()
	if mine && n.mayReport(p, k, from) && n.mayQuote(w.pod, f, k, from) && n.mayErr(w.pod, Ingress) {
		if w.exchanged {
			return Verdict{Fate: ToStack, Why: "error about a translated flow"}
		}
		return Verdict{Fate: ToStack, Why: "error about a flow"}
	}
	if w.host && !(n.left(w.pod, p) && n.mayErr(w.pod, Ingress)) {
		w.host, w.client = false, netip.AddrPortFrom(unspecified[p.V6()], 0)
	}
	switch {
	case !n.evaluate(w) && mine && !n.mayReport(p, k, from):
		return drop("error of a pod about a flow of others")
	case !n.evaluate(w):
		return drop("ingress policy")
	}
	return Verdict{Fate: ToStack, Why: "ingress policy allows errors"}
}

// unspecified stands for a sender that is not known, by whether it is IPv6.
var unspecified = map[bool]netip.Addr{false: netip.IPv4Unspecified(), true: netip.IPv6Unspecified()}

// left reports whether there is a record of the packet that an ICMP error quotes, which the pod sent since its policy changed last:
// its flow is not known before DNAT. Without one the host may report a packet that has the address of the pod only.
func (n *Node) left(pod *Pod, p *Packet) bool {
	if !p.Quotes() {
		return false
	}
	src, dst := p.Quote.Ends()
	for _, r := range n.records {
		if r.pod.Slot == pod.Slot && r.epoch == pod.Epoch && r.src == src && r.dst == dst && r.packet.follows() == p.Quote.Proto {
			return true
		}
	}
	return false
}

// mayReport reports whether an ICMP error may belong to the flow that it quotes: it goes to the end that sent the quoted
// packet. Any router may send it, but a pod only about packets that it received (ADR 35).
func (n *Node) mayReport(p *Packet, k Key, from int) bool {
	return p.Dst == k.end[from].Addr() && (!n.isPod(p.Src) || p.Src == k.end[1-from].Addr())
}

// FromNode decides a packet from a device that leads to other nodes. ToStack means that the program has no
// effect.
func (n *Node) FromNode(device int, p *Packet) Verdict {
	pass := Verdict{Fate: ToStack, Why: "not bypassing the stack"}
	plain := p.Ether == "" && !p.malformed() && p.Fragment == Whole && p.Options == 0 && len(p.Extensions) == 0
	switch {
	case plain && p.IsError():
		f, k, from, ok := n.quoted(p)
		if !ok || !f.remote || !n.mayReport(p, k, from) || !n.forwardable(p) {
			return pass
		}
		pod, r := n.reachable(p.Dst), f.authorised[from]
		if pod == nil || !r.holds() || r.epoch != pod.Epoch || f.slots[from] != pod.Slot || p.Length() > n.MTU || !n.mayErr(pod, Ingress) {
			return pass
		}
		return Verdict{Fate: ToPod, Pod: pod, Why: "error about a flow"}
	case !plain || !HasPorts(p.Proto):
		return pass
	}
	w := &walk{packet: p, dir: Ingress, device: device}
	w.src, w.dst = p.Ends()
	w.k, w.from = KeyOf(w.src, w.dst, p.Proto)
	if !n.forwardable(p) || p.Length() > n.MTU {
		return pass
	}
	f := n.find(w.k)
	if f == nil {
		return n.arrived(w, pass)
	}
	route := n.route(p.Src)
	if !f.remote || f.device[w.from] != device && (route == nil || !route.Direct || route.Device != device) {
		return pass
	}
	// The slot of the pod that had the address before is free: packets take the slow path (ADR 32).
	if !n.attached(f.slots[1-w.from]) {
		return pass
	}
	f.device[w.from] = device
	v := n.allowPeer(w, f)
	if v.Fate == ToPod {
		f.passed(n.now, p, w.from, false)
	}
	return v
}

// arrived decides a new flow from another node.
func (n *Node) arrived(w *walk, pass Verdict) Verdict {
	w.pod = n.reachable(w.packet.Dst)
	if w.pod == nil || !w.starts() || !n.startsRemote(w.packet, w.packet.Src, w.device) {
		return pass
	}
	if !n.evaluate(w) {
		return drop("ingress policy")
	}
	f := n.create(w.k, w.from, w.pod.Slot)
	f.remote, f.device[w.from] = true, w.device
	f.authorised[1-w.from] = authorisation{accepted: true, epoch: w.pod.Epoch}
	return Verdict{Fate: ToPod, Pod: w.pod, Why: "new flow"}
}
