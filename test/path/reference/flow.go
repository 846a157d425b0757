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

// KeyOf returns the key and the index of the end that sent the packet.
func KeyOf(src, dst netip.AddrPort, proto uint8) (Key, int) {
	if src.Compare(dst) <= 0 {
		return Key{[2]netip.AddrPort{src, dst}, proto}, 0
	}
	return Key{[2]netip.AddrPort{dst, src}, proto}, 1
}

// authorisation records what policy allowed a pod at one end of a flow.
type authorisation struct {
	opened, accepted, ofHost bool
	revoked                  bool
	epoch                    int
}

func (r authorisation) any() bool   { return r.opened || r.accepted }
func (r authorisation) holds() bool { return r.any() && !r.revoked }

// The state of a flow determines how long it may be idle.
const (
	opening = iota
	established
	closing
)

// noDevice is the device of an end whose packets have not been seen. The first packet of another device shows that the sender has
// changed. One of the host does not: it needs no proof of its source, and the programs look up none (ADR 34).
const noDevice = Host

// flow is an entry of the flow table. The index of an array is the end of the key.
type flow struct {
	authorised [2]authorisation
	state      int
	seen       time.Duration
	sent       [2]bool
	// FIN: whether the end sent one, its acknowledgment number, and whether the other end acknowledged it.
	fin    [2]bool
	finAck [2]uint32
	closed [2]bool
	acked  [2]uint32 // the last acknowledgment number of a local pod
	// direct flows (between pods of this node) and remote flows (to another node) use the fast path; translated
	// flows go to a backend.
	direct, remote, translated, outside bool
	// portTaken is true after the flow on the fast path that has the translated addresses and ports was in the way.
	portTaken bool
	backend   netip.AddrPort
	// client is the original client of a flow that the node masqueraded. Port 0 means that the port is not known.
	client netip.AddrPort
	device [2]int
	// slots are the slots of the pods at the ends of a flow on the fast path, as of its last decision.
	slots [2]int
	// owner is the slot of the pod whose share of the table contains the flow.
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

// find returns a flow that has not expired.
func (n *Node) find(k Key) *flow {
	f := n.flows[k]
	if f == nil || n.now-f.seen > n.limit(f, k.proto) {
		return nil
	}
	return f
}

// isClient reports whether an end is the original client of a flow that the node masqueraded.
func (f *flow) isClient(end netip.AddrPort) bool {
	return f.client.Addr() == end.Addr() && (f.client.Port() == 0 || f.client.Port() == end.Port())
}

// create adds a flow whose first packet passes.
func (n *Node) create(k Key, from int, slot int) *flow {
	f := &flow{seen: n.now, device: [2]int{noDevice, noDevice}, slots: [2]int{slot, slot}, owner: slot}
	f.sent[from] = true
	n.flows[k], n.created = f, &k
	return f
}

// closes updates the TCP state at the end of a connection: a FIN counts when the other end acknowledges it. A
// reset counts if a pod of this node sends it, or if its sequence number equals the last acknowledgment of the
// pod (ADR 38).
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

// payload is the length of the TCP payload according to the IP header. It is unknown for a fragment.
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

// passed updates the flow for a packet that passes.
func (f *flow) passed(now time.Duration, p *Packet, from int, own bool) {
	f.seen = now
	if p.Opens() {
		f.fin, f.closed = [2]bool{}, [2]bool{}
		if f.state == closing {
			f.state = opening // the client reuses the ports
		}
	} else {
		if f.state == opening && f.sent[1-from] {
			f.state = established
		}
		f.closes(p, from, own)
	}
	f.sent[from] = true
}

// place is an index of the table of fragmented datagrams: each pod has eight entries for a direction.
type place struct {
	slot int
	dir  Direction
	n    uint32
}

// datagram holds the ports of a fragmented datagram whose first fragment passed.
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

// ports returns the ports of a packet. A later fragment has those of the first fragment, if that passed.
func (n *Node) ports(pod *Pod, dir Direction, p *Packet) (src, dst netip.AddrPort, known bool) {
	d, ok := n.datagrams[placeOf(pod, dir, p.ID)]
	known = ok && n.now-d.at <= n.Timeouts.Datagram && d.id == p.ID && d.proto == p.follows() && d.src.Addr() == p.Src && d.dst.Addr() == p.Dst
	return d.src, d.dst, known
}
