// SPDX-License-Identifier: Apache-2.0

package path

import (
	"net/netip"

	"github.com/isthmus-net/isthmus/test/path/reference"
)

// errorAbout returns an ICMP error about a packet, from its receiver to its sender.
func errorAbout(q reference.Packet) reference.Packet {
	p := reference.Packet{Src: q.Dst, Dst: q.Src, Proto: icmp(q.V6()), Type: 3, Quote: &q}
	if p.V6() {
		p.Type = 1
	}
	return p
}

// throughNAT makes the ends of a translated flow, a router, and others send errors about it.
func (g *generator) throughNAT() {
	v6 := g.chance(50)
	name, own := g.open(v6)
	client, at := same(servers["w1"], v6), "uplink"
	backend := netip.AddrPortFrom(own, 8080)
	if g.chance(50) { // the pod is the client, and perhaps a pod the backend
		client, at = own, name
		backend = netip.AddrPortFrom(pick(g, g.podAddr(v6), same(servers["w2"], v6), same(remotes["r3"], v6)), 8080)
	}
	sport := uint16(1000 + g.r.IntN(4))
	request := reference.Packet{Src: client, Dst: same(pick(g, services[:2], nodeAddrs[:2]), v6), Proto: reference.UDP, Sport: sport, Dport: 80}
	seen := request // by the backend
	seen.Dst, seen.Dport = backend.Addr(), backend.Port()
	set := translatedTo(backend, false)
	if g.chance(60) {
		port := uint16(40000 + g.r.IntN(1000))
		seen.Src, seen.Sport = same(nodeAddrs[:2], v6), port
		set = func(s *Step) { s.Backend, s.Masquerade = backend, port }
	}
	answer := reference.Packet{Src: request.Dst, Dst: request.Src, Proto: reference.UDP, Sport: 80, Dport: sport}
	back := reference.Packet{Src: seen.Dst, Dst: seen.Src, Proto: reference.UDP, Sport: seen.Dport, Dport: seen.Sport}
	g.step(at, request, set)
	if g.chance(70) {
		g.step(g.from(back.Src), back)
	}
	for range 1 + g.r.IntN(3) {
		p := errorAbout(pick(g, answer, seen, back, request))
		origin := g.from(p.Src)
		switch g.r.IntN(6) {
		case 0:
			p.Src, origin = same(routerAddrs, v6), "uplink"
		case 1:
			p.Src = g.podAddr(v6)
			origin = g.from(p.Src)
		}
		g.step(origin, p)
		if g.chance(15) {
			g.attach(name, 0)
		}
	}
}

// backendItself addresses the backend of a Service from the same port as the Service, in any order. Connection tracking knows the
// reverse direction of the direct flow only; a direct flow on the fast path must leave it.
func (g *generator) backendItself() {
	v6 := g.chance(50)
	name, _ := g.open(v6)
	backend := netip.AddrPortFrom(same(pick(g, remotes["r1"], remotes["r2"]), v6), 8080)
	through := g.udp(name, same(pick(g, services[:2], services[2:]), v6), uint16(1000+g.r.IntN(4)), 80)
	if g.chance(30) {
		through.Proto, through.Flags = reference.TCP, "S"
	}
	direct := through
	direct.Dst, direct.Dport = backend.Addr(), backend.Port()
	answer := direct
	answer.Src, answer.Dst, answer.Sport, answer.Dport = direct.Dst, direct.Src, direct.Dport, direct.Sport
	answer.Flags = map[bool]string{true: pick(g, "SA", "R", "RA")}[answer.Proto == reference.TCP]
	if g.chance(50) {
		g.step(name, direct)
		if g.chance(50) {
			g.step(g.from(answer.Src), answer)
		}
	}
	g.step(name, through, translatedTo(backend, g.chance(20)))
	g.step(name, direct)
	g.step(g.from(answer.Src), answer)
}

// portTaken opens a connection to a pod, and one from the same port to a Service with that pod as its backend, in any order. The
// stack gives the second one another source port. The pod may only answer.
func (g *generator) portTaken() {
	v6 := g.chance(50)
	name, other := g.two(v6)
	backend := netip.AddrPortFrom(same(podAddrs(g.pods[other]), v6), 8080)
	if g.chance(20) {
		backend = netip.AddrPortFrom(same(remotes["r1"], v6), 8080)
	} else if g.chance(60) {
		g.attachWith(other, g.pods[other], reference.Policy{Isolated: [2]bool{false, true}})
	}
	sport := uint16(1000 + g.r.IntN(4))
	direct := reference.Packet{Src: same(podAddrs(g.pods[name]), v6), Dst: backend.Addr(), Proto: reference.TCP, Flags: "S", Sport: sport, Dport: 8080}
	through := direct
	through.Dst, through.Dport = same(services[:2], v6), 80
	answer := reference.Packet{Src: direct.Dst, Dst: direct.Src, Proto: reference.TCP, Flags: "SA", Sport: 8080, Dport: sport}
	moved := answer
	moved.Dport = otherPort(sport)
	at := g.from(answer.Src)
	if g.chance(25) {
		direct.Proto, direct.Flags, answer.Proto, answer.Flags = reference.UDP, "", reference.UDP, ""
		through.Proto, through.Flags, moved.Proto, moved.Flags = reference.UDP, "", reference.UDP, ""
	}
	first, second := func() { g.step(name, direct) }, func() { g.step(name, through, translatedTo(backend, g.chance(15))) }
	if g.chance(40) {
		first, second = second, first
	}
	first()
	g.step(at, answer)
	for range 1 + g.r.IntN(3) {
		second()
		if g.chance(20) {
			g.attach(other, g.pods[other])
		}
	}
	g.step(at, moved)
	g.step(at, answer)
	if g.chance(50) {
		first()
		second()
	}
}

// foreignQuote makes a pod of this node or of another one send an error about a flow of others.
func (g *generator) foreignQuote() {
	v6 := g.chance(50)
	name, own := g.open(v6)
	q := g.udp(name, same(pick(g, servers["w1"], remotes["r1"], remotes["r2"], routerAddrs), v6), 1000, 80)
	g.step(name, q)
	g.attachWith(name, g.pods[name], reference.Policy{Isolated: [2]bool{true, false}})
	p := errorAbout(q)
	p.Src = pick(g, g.podAddr(v6), same(remotes["r1"], v6), same(remotes["r2"], v6), same(remotes["r3"], v6))
	if p.Src != own {
		g.step(g.from(p.Src), p)
	}
}

// answersFirst edits the policy of one end of a flow, without a change for that flow. The server then sends first.
func (g *generator) answersFirst() {
	v6 := g.chance(50)
	name, other := g.two(v6)
	own, peer := same(podAddrs(g.pods[name]), v6), same(podAddrs(g.pods[other]), v6)
	if g.chance(50) {
		peer = same(pick(g, remotes["r1"], remotes["r2"], remotes["r3"], servers["w1"]), v6)
	}
	rule := reference.Rule{Dir: pick(g, reference.Ingress, reference.Egress), Proto: reference.UDP, Ports: []uint16{80}}
	request := reference.Packet{Src: peer, Dst: own, Proto: reference.UDP, Sport: uint16(1000 + g.r.IntN(4)), Dport: 80}
	if rule.Dir == reference.Egress {
		request.Src, request.Dst = own, peer
	}
	answer := reference.Packet{Src: request.Dst, Dst: request.Src, Proto: reference.UDP, Sport: 80, Dport: request.Sport}
	isolated := reference.Policy{Isolated: [2]bool{true, true}, Rules: []reference.Rule{rule}}
	g.attachWith(name, g.pods[name], isolated)
	g.step(g.from(request.Src), request)
	edited := rule
	edited.Ports = []uint16{pick[uint16](g, 53, 443, 8080)}
	isolated.Rules = []reference.Rule{rule, edited}
	g.attachWith(name, g.pods[name], isolated)
	g.step(g.from(answer.Src), answer)
	g.step(g.from(request.Src), request)
}
