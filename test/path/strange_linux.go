// SPDX-License-Identifier: Apache-2.0

package path

import (
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/test/path/reference"
)

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
	if g.chance(15) { // in IPv4 this number is not ICMP
		p.Extensions, p.Behind = nil, 0
		p.Src, p.Dst = same(podAddrs(g.pods[name]), false), g.anyAddr(false)
		at = name
	}
	g.add(nil, p, at)
	g.steps[len(g.steps)-1].Raised = at != name && g.chance(50)
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

func (g *generator) tunneled() {
	v6, inner6 := g.chance(50), g.chance(50)
	inner := reference.Packet{Src: g.anyAddr(inner6), Dst: g.podAddr(inner6), Proto: reference.UDP, Sport: 1, Dport: 80}
	if g.chance(50) {
		inner.Src = same(remotes["r2"], inner6)
	}
	p := reference.Packet{Src: same(otherNode, v6), Dst: same(nodeAddrs, v6), Proto: reference.UDP, Sport: 1000, Dport: tunnelPort, Inner: &inner}
	at := "uplink"
	var more []func(*Step)
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
	case 3: // by this node to another
		p.Dst = p.Src
		if g.chance(70) {
			p.Src = same(strangers[:2], v6)
		}
		if g.chance(60) {
			p.Dst, p.Dport = same(services[:2], v6), 53
			more = append(more, translatedTo(netip.AddrPortFrom(same(otherNode, v6), tunnelPort), g.chance(50)))
		}
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
	g.step(at, p, more...)
}

func (g *generator) onWire() {
	v6 := g.chance(50)
	t, ok := g.known()
	if !ok || g.chance(50) {
		t = &talk{ends: [2]netip.AddrPort{netip.AddrPortFrom(g.anyAddr(v6), 1000), netip.AddrPortFrom(g.podAddr(v6), 80)},
			proto: pick[uint8](g, reference.TCP, reference.ICMP, reference.ICMPv6, icmp(v6), 17)}
		if g.chance(15) { // numbers of IPv6 extension headers, which are protocols in IPv4, and others
			t.proto = pick[uint8](g, 0, 43, 44, 51, 60, gre, 50, 132)
		}
	}
	p := t.packet(0)
	if p.V6() && slices.Contains([]uint8{0, 43, 44, 51, 60}, p.Proto) {
		p.Proto = 59 // the number would be an extension header
	}
	p.Flags = map[bool]string{true: pick(g, "S", "A", "SA")}[p.Proto == reference.TCP]
	if p.Proto == icmp(!p.V6()) {
		p.Type, p.Size = pick[uint8](g, 8, 128, 0, 1), pick(g, 0, 4, 8, 16)
	}
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
		if g.chance(30) {
			q.Proto = pick[uint8](g, reference.UDP, reference.SCTP, 47, 50, 132)
		}
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

func (g *generator) odd() {
	name := pick(g, g.names()...)
	v6 := g.chance(50)
	p := reference.Packet{Src: same(podAddrs(g.pods[name]), v6), Dst: g.anyAddr(v6), Proto: pick[uint8](g, 0, 2, 4, 41, 50, 51, 59, 132, 255, icmp(!v6)), Size: 24}
	p.Type = pick[uint8](g, 3, 8, 128, 135)
	switch g.r.IntN(5) {
	case 0:
		p.Ether = "other"
	case 1:
		p.Dst = same(addrs("127.0.0.1", "::1"), v6)
	case 2:
		p.Dst = p.Src
	case 3:
		p.Dst = same(pick(g, addrs("224.0.0.1", "ff05::1"), addrs("255.255.255.255", "ff05::2"), broadcasts), v6)
	}
	if v6 && (p.Proto == 0 || p.Proto == 51) {
		p.Proto = 59 // an extension
	}
	if g.chance(10) {
		p.Version = 5
	}
	if g.chance(20) {
		p.Src, p.Dst, name = p.Dst, p.Src, "uplink"
	}
	g.add(nil, p, name)
}
