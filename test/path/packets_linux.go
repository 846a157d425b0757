// SPDX-License-Identifier: Apache-2.0

package path

import (
	"net/netip"

	"github.com/isthmus-net/isthmus/test/path/reference"
)

// packet adds a packet: mostly of a conversation, as its end would send it.
func (g *generator) packet() {
	switch n := g.r.IntN(100); {
	case n < 69:
		g.talk()
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

// from is where packets of an address enter.
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
	if p.IsEcho() && g.chance(15) { // the reverse of the conversation
		p.Type = pick[uint8](g, 8, 0)
		if p.V6() {
			p.Type = pick[uint8](g, 128, 129)
		}
	}
	g.shape(&p)
	g.add(t, p, g.from(p.Src))
}

// sent is a packet of a conversation as its end sends it: of a Service, the backend answers.
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

// segment adds one of TCP.
func (g *generator) segment(t *talk, from int, flags string) {
	p := g.sent(t, from)
	p.Flags, p.Seq, p.Ack = flags, t.next[from], t.next[1-from]
	g.shape(&p)
	if g.chance(5) { // not what the other end expects
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

// shape changes what should not matter, or only to the way.
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
		if p.V6() {
			g.extend(p)
		} else {
			p.Options = 4 * (1 + g.r.IntN(10))
		}
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
		return
	}
	more := 60 + g.r.IntN(35)
	for range 9 {
		p.Extensions = append(p.Extensions, pick(g, 0, 43, 60, 60+256*g.r.IntN(4), 44))
		if !g.chance(more) {
			break
		}
	}
	if p.Fragment != reference.Whole {
		p.Behind = g.r.IntN(len(p.Extensions) + 1)
	}
}

// cut leaves out the end of a packet, anywhere or close to the end. The length in its
// header may go with it.
func (g *generator) cut(p *reference.Packet) {
	const least = 40 // the kernel takes no less in test runs
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

// icmpError quotes a packet of a conversation, or of none.
func (g *generator) icmpError() {
	t, ok := g.known()
	if !ok {
		t = g.begin()
	}
	from := g.r.IntN(2)
	q := t.packet(from)
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
	case 0: // from a router on the way
		p.Src, at = same(routerAddrs, p.V6()), "uplink"
	case 1: // to somebody else
		p.Dst = g.anyAddr(p.V6())
	case 2: // by somebody else
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

// fragments adds some of a datagram, in any order.
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
func (g *generator) discovery() {
	name := pick(g, g.names()...)
	own := same(podAddrs(g.pods[name]), true)
	p := reference.Packet{Proto: reference.ICMPv6, Type: pick[uint8](g, 130, 131, 132, 133, 134, 135, 136, 137, 143, 138), Size: 16}
	p.Hops = pick[uint8](g, 255, 255, 255, 254, 1, 64)
	p.Src = pick(g, own, linkLocalOf(name), netip.MustParseAddr("fe80::1"), netip.IPv6Unspecified(), g.anyAddr(true))
	p.Dst = pick(g, netip.MustParseAddr("ff02::1"), netip.MustParseAddr("fe80::1"), nodeAddrs[1], g.anyAddr(true), netip.MustParseAddr("ff02::1:ff00:11"))
	at := name
	if g.chance(40) {
		at = pick(g, "host", "uplink", "tunnel", g.from(p.Src))
		if g.chance(70) {
			p.Dst = own
		}
	}
	if g.chance(10) {
		p.Fragment = reference.FirstFragment
	}
	if g.chance(20) {
		g.extend(&p)
	}
	if g.chance(15) { // in IPv4 it is no ICMP
		p.Extensions, p.Behind = nil, 0
		p.Src, p.Dst = same(podAddrs(g.pods[name]), false), g.anyAddr(false)
		at = name
	}
	g.add(nil, p, at)
}

func linkLocalOf(name string) netip.Addr {
	m := macOf(name)
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
}

func (g *generator) arp() {
	name := pick(g, g.names()...)
	p := reference.Packet{Ether: "arp", Src: podAddrs(g.pods[name])[0], Operation: pick[uint16](g, 1, 1, 2, 3),
		ARPAddress: pick(g, "", "", "none", "foreign"), ARPForeign: g.chance(15), ForeignMAC: g.chance(5)}
	if g.chance(10) {
		p.Cut = 27
	}
	g.add(nil, p, name)
}

// tunneled adds VXLAN of nodes, and of others.
func (g *generator) tunneled() {
	v6, inner6 := g.chance(50), g.chance(50)
	inner := reference.Packet{Src: g.anyAddr(inner6), Dst: g.podAddr(inner6), Proto: reference.UDP, Sport: 1, Dport: 80}
	if g.chance(50) {
		inner.Src = same(remotes["r2"], inner6)
	}
	p := reference.Packet{Src: same(otherNode, v6), Dst: same(nodeAddrs, v6), Proto: reference.UDP, Sport: 1000, Dport: tunnelPort, Inner: &inner}
	at := "uplink"
	switch g.r.IntN(5) {
	case 0:
		p.Src = g.anyAddr(v6)
		at = g.from(p.Src)
	case 1:
		p.Src = g.podAddr(v6)
		at = g.from(p.Src)
		if g.chance(40) {
			p.Dst = g.anyAddr(v6)
		}
	case 2:
		p.Fragment, p.Inner = pick(g, reference.FirstFragment, reference.LaterFragment), nil
	}
	if g.chance(20) {
		g.extend(&p)
	}
	switch g.r.IntN(12) {
	case 0:
		p.OtherVNI = true
	case 1:
		inner.Ether = "other"
	case 2, 3:
		p.Cut = max(40, p.Length()-g.r.IntN(70))
		p.Claims = p.Cut
	}
	if at == "host" {
		at = "uplink"
	}
	g.add(nil, p, at)
}

// onWire adds frames that are decided before the stack sees them: tagged, in pieces, cut off,
// or with a wrong header.
func (g *generator) onWire() {
	v6 := g.chance(50)
	t, ok := g.known()
	if !ok || g.chance(50) {
		t = &talk{ends: [2]netip.AddrPort{netip.AddrPortFrom(g.anyAddr(v6), 1000), netip.AddrPortFrom(g.podAddr(v6), 80)}, proto: pick[uint8](g, reference.TCP, reference.ICMP, reference.ICMPv6, icmp(v6), 17)}
	}
	p := t.packet(0)
	p.Flags = map[bool]string{true: pick(g, "S", "A", "SA")}[p.Proto == reference.TCP]
	if g.chance(30) {
		p.Src = same(pick(g, listed[:2], listed[2:4], listed[4:]), p.V6())
	}
	if g.chance(50) {
		p.Tags = 1 + g.r.IntN(3)
	}
	if g.chance(40) {
		g.extend(&p)
	}
	if g.chance(20) {
		p.Fragment = pick(g, reference.FirstFragment, reference.LaterFragment)
		p.Behind = min(g.r.IntN(3), len(p.Extensions))
	}
	if p.Proto == icmp(p.V6()) && g.chance(70) {
		q := t.packet(1)
		p.Type, p.Quote, p.Short = uint8(g.r.IntN(15)), &q, g.chance(20)
		if p.V6() {
			p.Type = pick[uint8](g, 1, 4, 128, 129, 130, 132, 133, 134, 135, 136, 137, 143, 150)
		}
		if !p.IsError() {
			p.Quote, p.Short, p.Size = nil, false, 36
		}
		p.Hops = pick[uint8](g, 1, 64, 255)
		if p.V6() && g.chance(30) {
			p.Src = pick(g, netip.MustParseAddr("fe80::1"), netip.IPv6Unspecified())
		}
	}
	switch g.r.IntN(8) {
	case 0:
		p.Version = pick[uint8](g, 5, 10)
	case 1:
		p.Lengthless = !p.V6()
	case 2, 3:
		p.Piece = 1 + g.r.IntN(p.Length())
	case 4, 5:
		p.Cut = 1 + g.r.IntN(p.Length())
	case 6:
		if p.Tags == 0 && g.chance(30) {
			p.Ether = "tag"
		}
	case 7:
		p.Claims = 1 + g.r.IntN(p.Length())
	}
	g.add(nil, p, "wire")
}

// spoof sends with the address of another, or by another device.
func (g *generator) spoof() {
	v6 := g.chance(50)
	t, ok := g.known()
	if !ok || g.chance(30) {
		t = &talk{ends: [2]netip.AddrPort{netip.AddrPortFrom(g.anyAddr(v6), 1000), netip.AddrPortFrom(g.podAddr(v6), 80)}, proto: reference.UDP}
	}
	p := t.packet(g.r.IntN(2))
	p.Flags = map[bool]string{true: pick(g, "S", "A")}[p.Proto == reference.TCP]
	switch g.r.IntN(4) {
	case 0:
		p.ForeignMAC = true
	case 1:
		p.Src = p.Dst
	case 2:
		p.Src = same(pick(g, nodeAddrs, strangers[2:], podAddrs(g.r.IntN(maxPods)), remotes["r1"], remotes["r2"]), p.V6())
	}
	g.add(t, p, pick(g, append(g.names(), "uplink", "uplink", "tunnel", "host")...))
}

// odd adds frames that are not IP, and packets to where none should go.
func (g *generator) odd() {
	name := pick(g, g.names()...)
	v6 := g.chance(50)
	p := reference.Packet{Src: same(podAddrs(g.pods[name]), v6), Dst: g.anyAddr(v6), Proto: pick[uint8](g, 0, 2, 4, 41, 50, 51, 59, 132, 255), Size: 24}
	switch g.r.IntN(5) {
	case 0:
		p.Ether = "other"
	case 1:
		p.Dst = same(addrs("127.0.0.1", "::1"), v6)
	case 2:
		p.Dst = p.Src
	case 3:
		p.Dst = same(addrs("224.0.0.1", "ff05::1"), v6)
	}
	if v6 && p.Proto == 0 {
		p.Proto = 59 // 0 is an extension
	}
	if g.chance(10) {
		p.Version = 5
	}
	if g.chance(20) {
		p.Src, p.Dst, name = p.Dst, p.Src, "uplink"
	}
	g.add(nil, p, name)
}
