// SPDX-License-Identifier: Apache-2.0

package reference

import "net/netip"

// FromPod decides what a pod sends.
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
	}
	if discovery, router := p.IsDiscovery(); discovery {
		if !router && n.discovers(pod, p) {
			return Verdict{Fate: ToStack, Why: "neighbour discovery"}
		}
		if router {
			return drop("a pod is no router")
		}
	}
	w := &walk{pod: pod, packet: p, dir: Egress}
	w.src, w.dst = p.Ends()
	if p.Fragment == LaterFragment {
		var known bool
		if w.src, w.dst, known = n.ports(pod, Egress, p); !known {
			return drop("later fragment before the first")
		}
	}
	if !pod.has(p.Src) || p.Src.IsUnspecified() {
		return drop("source address")
	}
	if p.Dst.Is4() && p.Dst.IsLoopback() {
		return drop("loopback")
	}
	if p.Src == p.Dst {
		return Verdict{Fate: ToStack, Why: "to itself"}
	}
	w.k, w.from = KeyOf(w.src, w.dst, p.Proto)
	var v Verdict
	if p.IsError() {
		v = n.sendError(w)
	} else {
		v = n.send(w)
	}
	if p.Fragment == FirstFragment && v.Fate != Dropped {
		n.noteDatagram(pod, Egress, p, w.src, w.dst)
	}
	return v
}

// arp lets a pod speak for itself only.
func (n *Node) arp(pod *Pod, p *Packet) Verdict {
	if _, ok := pod.addr(false); !ok || p.ARPAddress == "foreign" || p.ARPForeign || p.Operation != 1 && p.Operation != 2 || p.Cut > 0 {
		return drop("ARP for others")
	}
	return Verdict{Fate: ToStack, Why: "ARP for itself"}
}

// discovers reports whether a pod's message of discovery is for its link, and speaks
// for no other.
func (n *Node) discovers(pod *Pod, p *Packet) bool {
	if !p.Dst.IsLinkLocalUnicast() && !p.Dst.IsLinkLocalMulticast() && !n.isOwn(p.Dst) {
		return false
	}
	return p.Src.IsUnspecified() || p.Src == pod.linkLocal() || pod.has(p.Src)
}

// send decides what belongs to a flow.
func (n *Node) send(w *walk) Verdict {
	p := w.packet
	outside := !n.isPod(w.dst.Addr())
	if p.Opens() {
		if outside && w.translatable() {
			return n.leave(w, false)
		}
		if !n.judge(w) {
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
	own := f.roles[w.from]
	current := own.epoch == w.pod.Epoch
	pends := outside && (!current || !own.any())
	if f.translated {
		pends = !n.Shared || !current || p.Proto != TCP
	}
	if w.translatable() && !own.accepted && pends {
		f.closes(p, w.from, true)
		return n.leave(w, false)
	}
	if !n.admit(w, f) {
		return drop("egress policy of a known flow")
	}
	v := Verdict{Fate: ToStack, Why: "known flow"}
	switch {
	case f.direct:
		v = n.admitPeer(w, f)
	case f.remote:
		v = Verdict{Fate: ToNode, Why: "known flow"}
		if way := n.way(w.dst.Addr()); way == nil || !n.forwardable(p) || p.Length() > n.MTU {
			v.Fate = ToStack
		}
	case f.outside && w.translatable() && !n.Shared:
		answers := f.roles[w.from].accepted
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

// starts reports whether a packet may start a flow that bypasses the stack.
func (w *walk) starts() bool {
	return w.packet.Opens() || w.packet.Proto == UDP && !w.packet.IsError()
}

// open decides an unknown flow of a pod, for both ends if both are here.
func (n *Node) open(w *walk) Verdict {
	if !n.judge(w) {
		return drop("egress policy")
	}
	peer := n.reachable(w.dst.Addr())
	switch {
	case w.starts() && !w.pod.Limited && peer != nil:
		if !n.says(peer, Ingress, w.src.Addr(), w.packet.Proto, w.dst.Port()) {
			return drop("ingress policy of the receiver")
		}
		f := n.create(w.k, w.from, w.pod.Slot)
		f.roles[w.from] = role{opened: true, epoch: w.pod.Epoch}
		f.roles[1-w.from] = role{accepted: true, epoch: peer.Epoch}
		f.direct = true
		f.slots[1-w.from] = peer.Slot
		return Verdict{Fate: ToPod, Pod: peer, Why: "new flow between pods"}
	case w.starts() && !w.pod.Limited && n.startsRemote(w.packet, w.dst.Addr(), 0):
		f := n.create(w.k, w.from, w.pod.Slot)
		f.roles[w.from] = role{opened: true, epoch: w.pod.Epoch}
		f.remote = true
		f.device[1-w.from] = n.way(w.dst.Addr()).Device
		return Verdict{Fate: ToNode, Why: "new flow to another node"}
	}
	f := n.create(w.k, w.from, w.pod.Slot)
	f.roles[w.from] = role{opened: true, epoch: w.pod.Epoch}
	f.outside = !n.isPod(w.dst.Addr())
	return Verdict{Fate: ToStack, Why: "new flow"}
}

// forwardable reports whether a router would send the packet on as it is, with a hop less.
func (n *Node) forwardable(p *Packet) bool {
	if p.Fragment != Whole || p.HopLimit() <= 1 || p.Options > 0 || len(p.Extensions) > 0 {
		return false
	}
	return !p.V6() || p.Proto == TCP || p.Proto == UDP || p.Proto == ICMPv6
}

// startsRemote reports whether a flow with an address elsewhere may bypass the stack.
// device is the one that it came by, or 0.
func (n *Node) startsRemote(p *Packet, remote netip.Addr, device int) bool {
	way := n.way(remote)
	src, dst := p.Ends()
	if n.Tracked != nil && n.Tracked(src, dst, p.Proto) {
		return false // the stack may have translated it
	}
	return (p.Proto == TCP || p.Proto == UDP) && way != nil && way.Direct && (device == 0 || device == way.Device) &&
		n.forwardable(p) && (device != 0 || p.Length() <= n.MTU)
}

// sendError decides an ICMP error of a pod: it may quote what the pod received.
func (n *Node) sendError(w *walk) Verdict {
	p := w.packet
	f, k, from, ok := n.quoted(p)
	if ok && p.Dst == k.end[from].Addr() && p.Src == k.end[1-from].Addr() && n.mayQuote(w.pod, f, k, 1-from) && n.mayErr(w.pod, Egress) {
		if f.direct {
			peer := n.reachable(p.Dst)
			if r := f.roles[from]; peer != nil && r.holds() && r.epoch == peer.Epoch && f.slots[from] == peer.Slot {
				return Verdict{Fate: ToPod, Pod: peer, Why: "error about a flow between pods"}
			}
			return Verdict{Fate: ToStack, Why: "error about a flow"}
		}
		if f.remote && n.forwardable(p) && p.Length() <= n.MTU {
			return Verdict{Fate: ToNode, Why: "error about a flow to another node"}
		}
		return Verdict{Fate: ToStack, Why: "error about a flow"}
	}
	if !n.judge(w) {
		return drop("egress policy")
	}
	return Verdict{Fate: ToStack, Why: "egress policy allows errors"}
}

// mayQuote reports whether a pod at an end of a flow is allowed it now.
func (n *Node) mayQuote(pod *Pod, f *flow, k Key, end int) bool {
	r := f.roles[end]
	if !r.any() {
		return false
	}
	if r.epoch == pod.Epoch {
		return !r.revoked
	}
	return n.confirm(pod, f, k, end)
}

// mayErr takes an error out of the budget of a pod (ADR 35).
func (n *Node) mayErr(pod *Pod, dir Direction) bool {
	at := place{slot: pod.Slot, dir: dir}
	if n.errors[at] >= n.Errors {
		return false
	}
	n.errors[at]++
	return true
}

// quoted finds the flow of the packet that an error quotes, and which end sent that.
func (n *Node) quoted(p *Packet) (f *flow, k Key, from int, known bool) {
	q := p.Quote
	left := p.Length()
	if p.Cut > 0 {
		left = min(left, p.Cut)
	}
	if q.V6() && (len(q.Extensions) > 0 || q.Fragment != Whole) {
		return nil, k, 0, false
	}
	if !q.V6() && q.Fragment == LaterFragment || left < p.headers()+p.quotedRead() {
		return nil, k, 0, false
	}
	if p.Short && (HasPorts(q.Proto) || q.isICMP()) {
		return nil, k, 0, false
	}
	src, dst := q.Ends()
	k, from = KeyOf(src, dst, q.Proto)
	f = n.find(k)
	return f, k, from, f != nil
}
