// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"net/netip"
	"time"
)

// Key names a flow: its two ends in order, and the protocol.
type Key struct {
	end   [2]netip.AddrPort
	proto uint8
}

// KeyOf returns the key, and which of its ends sent the packet.
func KeyOf(src, dst netip.AddrPort, proto uint8) (Key, int) {
	if src.Compare(dst) <= 0 {
		return Key{[2]netip.AddrPort{src, dst}, proto}, 0
	}
	return Key{[2]netip.AddrPort{dst, src}, proto}, 1
}

// role is what policy granted a pod at one end of a flow.
type role struct {
	opened, accepted, ofHost bool
	revoked                  bool
	epoch                    int
}

func (r role) any() bool   { return r.opened || r.accepted }
func (r role) holds() bool { return r.any() && !r.revoked }

// State of a flow, which says how long it may be idle.
const (
	opening = iota
	established
	closing
)

// Devices by which the packets of an end come, beside those that are there.
const noDevice = -1

// flow is what is remembered of a flow. Arrays are by end of its key.
type flow struct {
	roles [2]role
	state int
	seen  time.Duration
	sent  [2]bool
	// FIN: sent, its acknowledgment, and whether it was acknowledged.
	fin    [2]bool
	finAck [2]uint32
	closed [2]bool
	acked  [2]uint32 // what a local pod acknowledged last
	// direct and remote flows bypass the stack; translated ones go to a backend.
	direct, remote, translated, outside bool
	backend                             netip.AddrPort
	// client is who really sends, behind an address of the node.
	client netip.Addr
	device [2]int
	// slots are those of the pods at the ends of a flow bypassing the stack, when it was
	// decided last there.
	slots [2]int
	// owner is the slot of the pod in whose share of the table the flow is.
	owner int
}

func (n *Node) limit(f *flow, proto uint8) time.Duration {
	switch {
	case f.state == opening:
		return n.Timeouts.Opening
	case f.state == closing:
		return n.Timeouts.Closing
	case proto == TCP:
		return n.Timeouts.TCP
	}
	return n.Timeouts.Other
}

// find returns a flow that was not idle for too long.
func (n *Node) find(k Key) *flow {
	f := n.flows[k]
	if f == nil || n.now-f.seen > n.limit(f, k.proto) {
		return nil
	}
	return f
}

// create remembers a new flow of which a packet passes.
func (n *Node) create(k Key, from int, slot int) *flow {
	f := &flow{seen: n.now, device: [2]int{noDevice, noDevice}, slots: [2]int{slot, slot}, owner: slot}
	f.sent[from] = true
	n.flows[k], n.created = f, &k
	return f
}

// closes follows how TCP closes: a FIN counts when the other end acknowledges it. A
// reset counts from a pod of this node, and from elsewhere if its number is what the
// pod acknowledged last (ADR 38).
func (f *flow) closes(p *Packet, from int, own bool) {
	if p.Proto != TCP || p.Fragment == LaterFragment {
		return
	}
	if own && p.flag("A") {
		f.acked[from] = p.Ack
	}
	if p.flag("A") && f.fin[1-from] && p.Ack == f.finAck[1-from] {
		f.closed[1-from] = true
	}
	if p.flag("F") {
		f.fin[from], f.finAck[from] = true, p.Seq+uint32(p.payload())+1
	}
	if f.closed[0] && f.closed[1] {
		f.state = closing
	}
	if p.flag("R") && f.state == established && (own || p.Seq == f.acked[1-from]) {
		f.state = closing
	}
}

// payload is the TCP payload that the IP header states. That of a fragment is unknown.
func (p *Packet) payload() int {
	if p.Fragment != Whole {
		return 0
	}
	length := p.Length()
	if p.Claims > 0 {
		length = p.Claims
	}
	return max(0, length-p.network()-20)
}

// passed notes a packet that passes.
func (f *flow) passed(now time.Duration, p *Packet, from int, own bool) {
	f.seen = now
	if p.Opens() {
		f.fin, f.closed = [2]bool{}, [2]bool{}
		if f.state == closing {
			f.state = opening // the ports are used again
		}
	} else {
		if f.state == opening && f.sent[1-from] {
			f.state = established
		}
		f.closes(p, from, own)
	}
	f.sent[from] = true
}

// place is where the ports of a datagram are kept: each pod has eight for a direction.
type place struct {
	slot int
	dir  Direction
	n    uint32
}

// datagram is what is known of a fragmented one of which the first fragment passed.
type datagram struct {
	src, dst netip.AddrPort
	id       uint32
	proto    uint8
	at       time.Duration
}

func placeOf(p *Pod, dir Direction, id uint32) place { return place{p.Slot, dir, id % 8} }

func (n *Node) noteDatagram(pod *Pod, dir Direction, p *Packet, src, dst netip.AddrPort) {
	n.datagrams[placeOf(pod, dir, p.ID)] = datagram{src, dst, p.ID, p.Proto, n.now}
}

// ports gives a later fragment those of the first one, if that passed.
func (n *Node) ports(pod *Pod, dir Direction, p *Packet) (src, dst netip.AddrPort, known bool) {
	d, ok := n.datagrams[placeOf(pod, dir, p.ID)]
	known = ok && n.now-d.at <= n.Timeouts.Datagram && d.id == p.ID && d.proto == p.follows() && d.src.Addr() == p.Src && d.dst.Addr() == p.Dst
	return d.src, d.dst, known
}
