// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"net/netip"
	"slices"
)

// NoMark is the number of the record of a packet without a mark.
const NoMark = -1

// AfterDNAT decides a pod's packet after DNAT, by the record that its mark names. A mark without a record, or
// with the record of another packet, is forged.
func (n *Node) AfterDNAT(device int, p *Packet, number int) Verdict {
	pod, r := n.Pods[device], n.records[number]
	if number == 0 {
		return Verdict{Fate: ToStack, Why: "approved"}
	}
	if number == NoMark && n.Handover {
		return Verdict{Fate: ToStack, Why: "decided by an older program"}
	}
	if r == nil || r.pod.Slot != pod.Slot {
		return drop("mark without a record")
	}
	src, dst := p.Ends()
	if p.Fragment == LaterFragment {
		src, dst = netip.AddrPortFrom(p.Src, r.src.Port()), netip.AddrPortFrom(p.Dst, r.dst.Port())
		if p.Dst != r.dst.Addr() {
			return drop("record of another packet")
		}
	}
	if p.V6() && p.headersOfIP() >= 8 { // the transport protocol is unknown
		return drop("record of another packet")
	}
	if src != r.src || p.follows() != r.packet.follows() {
		return drop("record of another packet")
	}
	if p.Proto == UDP && n.TunnelPort != 0 && dst.Port() == n.TunnelPort {
		return drop("pods send into no tunnel")
	}
	k, from := KeyOf(r.src, r.dst, p.Proto)
	f := n.find(k)
	if r.answer && (dst == r.dst || f != nil && f.isClient(dst)) {
		return Verdict{Fate: ToStack, Why: "answer"}
	}
	if slices.Contains(n.Broadcast, p.Dst) {
		return drop("broadcast or anycast to the node")
	}
	allowed := p.Src == p.Dst || n.allows(pod, Egress, p.Dst, p.Proto, dst.Port())
	if f == nil {
		if !allowed {
			return drop("egress policy")
		}
		delete(n.flows, k)
		f = n.create(k, from, r.pod.Slot)
		f.authorised[from] = authorisation{opened: true, epoch: pod.Epoch}
		f.translated, f.outside, f.backend = true, true, dst
	} else if !n.noteTranslated(pod, f, from, r, dst, allowed) {
		return drop("egress policy")
	}
	if dst != r.dst && !n.reuse(f, r, dst, p.Proto) {
		return drop("ports of a connection on the fast path")
	}
	return Verdict{Fate: ToStack, Why: "egress policy"}
}

// noteTranslated records the backend of a packet in its flow.
func (n *Node) noteTranslated(pod *Pod, f *flow, from int, r *record, backend netip.AddrPort, allowed bool) bool {
	had := f.authorised[from]
	if !allowed {
		if had.opened {
			had.revoked, had.epoch = true, pod.Epoch
			f.authorised[from] = had
		}
		return false
	}
	f.bypassEnds()
	f.translated, f.outside, f.backend = true, true, backend
	if had.epoch != pod.Epoch || !had.holds() {
		had = authorisation{}
	}
	had.opened, had.epoch = true, pod.Epoch
	f.authorised[from] = had
	note := Packet{Proto: r.packet.Proto}
	if r.opens {
		note = Packet{Proto: TCP, Flags: "S"}
	}
	f.passed(n.now, &note, from, true)
	return true
}

// reuse takes a flow off the fast path if a translated flow has the same addresses and ports. An established TCP connection
// stays there. The first packet of the translated flow is dropped then: the next one gets another port.
func (n *Node) reuse(translated *flow, r *record, dst netip.AddrPort, proto uint8) bool {
	k, _ := KeyOf(r.src, dst, proto)
	switch f := n.find(k); {
	case f == nil:
	case proto != TCP || f.state == closing:
		f.bypassEnds()
	case (f.direct || f.remote) && f.state == established && r.opens:
		translated.portTaken = !translated.portTaken
		return !translated.portTaken
	}
	return true
}

// PreRouting decides a packet that arrives at this node, before the node answers it.
func (n *Node) PreRouting(device int, p *Packet) Verdict {
	if n.Pods[device] == nil && n.isHere(p.Src) && !n.isOwn(p.Src) {
		return drop("an address of a pod from elsewhere")
	}
	route := n.route(p.Src)
	if n.Pods[device] == nil && !p.V6() && p.Fragment != Whole && route != nil && route.Device != device {
		return drop("a fragment of another node's pod from elsewhere")
	}
	return Verdict{Fate: ToStack, Why: "may be answered"}
}

// Forward decides a packet that this node forwards for another host.
func (n *Node) Forward(device int, p *Packet) Verdict {
	if device != Host && n.isHere(p.Src) {
		return drop("an address of this node from elsewhere")
	}
	if route := n.route(p.Src); p.V6() && route != nil && route.Device != device && n.isHere(p.Dst) && !n.isOwn(p.Dst) {
		return drop("an address of another node from elsewhere")
	}
	return n.sendOn(device, p, "not ours")
}

// sendOn decides a packet that leaves for another host, maybe masqueraded. It must not reach the tunnel of another node
// with an inner source of this one.
func (n *Node) sendOn(device int, p *Packet, why string) Verdict {
	pass := Verdict{Fate: ToStack, Why: why}
	if !slices.ContainsFunc(n.Tunnels, func(t Tunnel) bool { return slices.Contains(t.Outer, p.Dst) }) {
		return pass
	}
	if v := n.LocalIn(device, p); v.Fate == Dropped && v.Why != endless {
		return v
	}
	return pass
}

// LocalOut decides a packet of another host that the kernel's virtual server (IPVS) forwards: it has passed
// LocalIn.
func (n *Node) LocalOut(device int, p *Packet) Verdict {
	return n.sendOn(device, p, "sent on to a backend")
}

// endless is the reason to drop a packet whose headers the programs do not read to their end.
const endless = "headers without an end"

// LocalIn decides a packet from another host to this node.
func (n *Node) LocalIn(device int, p *Packet) Verdict {
	pass := Verdict{Fate: ToStack, Why: "not for the tunnels"}
	left := p.Length()
	if p.Cut > 0 {
		left = p.Cut
	}
	udp := p.network()
	switch {
	case n.TunnelPort == 0 || device == Host:
		return pass
	case p.V6() && (p.headersOfIP() > 8 || p.Fragment != LaterFragment && (p.headersOfIP() == 8 || !p.reaches(left))):
		return drop(endless)
	case p.Proto != UDP || p.Fragment == LaterFragment || left < udp+8 || p.Dport != n.TunnelPort:
		return pass
	case p.Fragment != Whole:
		return drop("tunneled fragment")
	case p.Inner == nil || p.OtherVNI || left < udp+16:
		return Verdict{Fate: ToStack, Why: "no tunnel of ours"}
	}
	source := map[bool]int{false: 16, true: 24} // where the inner source ends
	if p.Inner.Ether != "" || left < udp+16+14+source[p.Inner.V6()] {
		return drop("no packet in the tunnel")
	}
	for _, t := range n.Tunnels {
		for _, outer := range t.Outer {
			if outer != p.Src {
				continue
			}
			for _, r := range t.Inner {
				if r.Contains(p.Inner.Src) {
					return Verdict{Fate: ToStack, Why: "tunnel of a node"}
				}
			}
		}
	}
	return drop("not from the node that the tunneled packet names")
}
