// SPDX-License-Identifier: Apache-2.0

package path

import (
	"net/netip"

	"github.com/isthmus-net/isthmus/test/path/reference"
)

// packet adds a packet, usually one that an end of a conversation would send.
func (g *generator) packet() {
	switch n := g.r.IntN(100); {
	case n < 66:
		g.talk()
	case n < 69:
		g.probe()
	case n < 77:
		g.icmpError()
	case n < 83:
		g.fragments()
	case n < 87:
		g.discovery()
	case n < 89:
		g.arp()
	case n < 91:
		g.tunneled()
	case n < 93:
		g.spoof()
	case n < 98:
		g.onWire()
	default:
		g.odd()
	}
}

// from returns where packets of an address enter.
func (g *generator) from(a netip.Addr) string {
	for _, name := range g.names() {
		if same(podAddrs(g.pods[name]), a.Is6()) == a {
			return name
		}
	}
	switch {
	case isNode(a):
		return "host"
	case a == same(remotes["r2"], a.Is6()) || a == same(remotes["r3"], a.Is6()):
		return "tunnel"
	}
	return "uplink"
}

// add sends a packet of a conversation.
func (g *generator) add(t *talk, p reference.Packet, at string) {
	s := Step{At: at, Packet: &p, Defragment: g.defragment}
	if t != nil && t.backend.IsValid() && p.Dst == t.ends[1].Addr() {
		s.Backend, s.Masquerade, s.IPVS = t.backend, t.masq, t.ipvs
		if g.chance(3) {
			s.Backend, s.Fresh = netip.AddrPortFrom(g.backend(p.V6()), 8080), true
		}
	}
	if t != nil && !s.Backend.IsValid() && (isNode(p.Dst) || isService(p.Dst)) && g.chance(10) {
		s.Backend = netip.AddrPortFrom(g.backend(p.V6()), 8080)
	}
	if g.chance(1) {
		s.Mark = pick(g, "none", "old")
	}
	s.Copied = g.chance(1)
	g.steps = append(g.steps, s)
}

// talk adds one or a few packets of a conversation.
func (g *generator) talk() {
	t, ok := g.known()
	if !ok || g.chance(25) {
		t = g.begin()
		if t.proto == reference.TCP && g.chance(60) { // the whole handshake
			g.segment(t, 0, "S")
			g.segment(t, 1, "SA")
			g.segment(t, 0, "A")
			return
		}
	}
	from := 0
	if len(g.steps)%2 == 1 || g.chance(20) {
		from = g.r.IntN(2)
	}
	if t.proto == reference.TCP {
		g.segment(t, from, pick(g, "A", "A", "PA", "S", "SA", "FA", "FA", "R", "RA", "F", "", "SF", "SR", "SFR", "U"))
		return
	}
	p := g.sent(t, from)
	if p.IsEcho() && g.chance(15) { // the reverse direction of the conversation
		p.Type = pick[uint8](g, 8, 0)
		if p.V6() {
			p.Type = pick[uint8](g, 128, 129)
		}
	}
	g.shape(&p)
	g.add(t, p, g.from(p.Src))
}

// sent returns a packet that an end of a conversation sends. For a Service, the backend answers.
func (g *generator) sent(t *talk, from int) reference.Packet {
	p := t.packet(from)
	if t.backend.IsValid() && from == 1 {
		p.Src, p.Sport = t.backend.Addr(), t.backend.Port()
		if t.masq > 0 {
			p.Dst, p.Dport = same(nodeAddrs, p.V6()), t.masq
		}
	}
	return p
}

// segment adds a TCP segment.
func (g *generator) segment(t *talk, from int, flags string) {
	p := g.sent(t, from)
	p.Flags, p.Seq, p.Ack = flags, t.next[from], t.next[1-from]
	g.shape(&p)
	if g.chance(5) { // a sequence number that the other end does not expect
		p.Seq += uint32(g.r.IntN(3)) - 1
		p.Ack += uint32(g.r.IntN(3)) - 1
	} else {
		t.next[from] += uint32(p.Size)
		for _, f := range flags {
			if f == 'S' || f == 'F' {
				t.next[from]++
			}
		}
	}
	g.add(t, p, g.from(p.Src))
}

// shape changes fields that should not affect the verdict, or only the path.
func (g *generator) shape(p *reference.Packet) {
	if g.chance(80) {
		return
	}
	switch g.r.IntN(8) {
	case 0:
		p.Hops = uint8(1 + g.r.IntN(3))
	case 1:
		p.Size = pick(g, 1400, 1452, 1480, 2000)
	case 2, 3:
		g.extend(p)
	case 4:
		if g.chance(50) {
			g.extend(p)
		}
		g.cut(p)
	case 5:
		p.Claims = max(p.Length()-g.r.IntN(24), 20)
		if p.V6() {
			p.Claims = max(p.Claims, 40)
		}
	default:
		p.Size = g.r.IntN(100)
	}
}

// extend adds extension headers of IPv6, or options of IPv4.
func (g *generator) extend(p *reference.Packet) {
	if !p.V6() {
		p.Options = 4 * (1 + g.r.IntN(10))
		if g.chance(10) {
			p.SourceRoute = pick[uint8](g, 131, 137)
		}
		return
	}
	more := 60 + g.r.IntN(35)
	for range 9 {
		p.Extensions = append(p.Extensions, pick(g, 0, 43, 60, 51, 51+256*g.r.IntN(4), 60+256*g.r.IntN(4), 44))
		if !g.chance(more) {
			break
		}
	}
	if p.Fragment != reference.Whole {
		p.Behind = g.r.IntN(len(p.Extensions) + 1)
	}
}

// cut truncates a packet, anywhere or close to the end. The length in its header may change too.
func (g *generator) cut(p *reference.Packet) {
	const least = 40 // the minimum of the kernel in test runs
	p.Cut = max(p.Length()-g.r.IntN(24), least)
	if g.chance(50) && p.Length() > least {
		p.Cut = least + g.r.IntN(p.Length()-least)
	}
	if p.Cut >= p.Length() {
		p.Cut = 0
	} else if g.chance(30) {
		p.Claims = p.Cut
	}
}

// icmpError quotes a packet of a conversation, or an unknown one.
func (g *generator) icmpError() {
	t, ok := g.known()
	if !ok {
		t = g.begin()
	}
	q := t.packet(g.r.IntN(2))
	if t.backend.IsValid() && g.chance(50) { // as the backend sees it
		q = g.sent(t, 1)
		if g.chance(50) {
			q.Src, q.Dst, q.Sport, q.Dport = q.Dst, q.Src, q.Dport, q.Sport
		}
	}
	switch g.r.IntN(12) {
	case 0:
		q.Sport++
	case 1:
		q.Fragment = reference.LaterFragment
	case 2:
		if q.V6() {
			q.Extensions = []int{60}
		} else {
			q.Options = 8
		}
	case 3:
		q.Dst = g.anyAddr(q.V6())
	case 4:
		q.Proto = pick[uint8](g, reference.ICMP, reference.ICMPv6, 50)
	}
	p := reference.Packet{Src: q.Dst, Dst: q.Src, Proto: icmp(q.V6()), Quote: &q, Short: g.chance(5)}
	p.Type = pick[uint8](g, 3, 11, 12, 5, 4)
	if p.V6() {
		p.Type = pick[uint8](g, 1, 2, 3, 4, 100)
	}
	if !p.IsError() {
		p.Quote, p.Short, p.Size = nil, false, 36
	}
	at := g.from(p.Src)
	switch g.r.IntN(8) {
	case 0: // from a router on the path
		p.Src, at = same(routerAddrs, p.V6()), "uplink"
	case 1: // to another address
		p.Dst = g.anyAddr(p.V6())
	case 2: // from another address
		p.Src = g.podAddr(p.V6())
		at = g.from(p.Src)
	}
	if g.chance(5) && p.Quote != nil {
		p.Cut = 48 + g.r.IntN(40)
	} else if g.chance(12) {
		p.Fragment, p.ID = reference.FirstFragment, uint32(g.r.IntN(12))
	}
	if g.chance(10) {
		g.extend(&p)
	}
	if g.chance(10) {
		g.cut(&p)
	}
	g.add(nil, p, at)
}

// fragments adds some fragments of a datagram, in any order.
func (g *generator) fragments() {
	t, ok := g.known()
	if !ok {
		t = g.begin()
	}
	from, id := g.r.IntN(2), uint32(g.r.IntN(12))
	g.defragment = t.backend.IsValid() || g.chance(20)
	defer func() { g.defragment = false }()
	for range 1 + g.r.IntN(3) {
		p := g.sent(t, from)
		p.ID, p.Fragment, p.Size = id, pick(g, reference.FirstFragment, reference.LaterFragment, reference.LaterFragment), 16
		if t.proto == reference.TCP {
			p.Flags = pick(g, "A", "S")
		}
		if g.chance(15) {
			g.extend(&p)
		}
		if g.chance(5) && !g.defragment {
			g.cut(&p)
		}
		g.add(t, p, g.from(p.Src))
	}
}

// discovery adds messages of neighbours, listeners and routers, and what looks like them.
// tunneled adds VXLAN of nodes, and of others.
// onWire adds frames that are decided before the stack sees them: tagged, in pieces, cut off,
// or with a wrong header.
// spoof sends with the address of another, or by another device.
// odd adds frames that are not IP, and packets to where none should go.
