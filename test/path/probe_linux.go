// SPDX-License-Identifier: Apache-2.0

package path

import (
	"net/netip"

	"github.com/isthmus-net/isthmus/test/path/reference"
)

// probe adds a few steps that lead to a state that conversations reach too rarely.
func (g *generator) probe() {
	probes := []func(*generator){
		(*generator).replayed, (*generator).replayed, (*generator).headerless, (*generator).longChain,
		(*generator).peerGone, (*generator).ownerGone, (*generator).impostor, (*generator).answered,
		(*generator).virtual, (*generator).virtual, (*generator).newSource, (*generator).copied,
		(*generator).throughNAT, (*generator).throughNAT, (*generator).backendItself, (*generator).foreignQuote,
		(*generator).answersFirst, (*generator).answersFirst,
	}
	if g.chance(8) {
		g.crowd()
		return
	}
	pick(g, probes...)(g)
}

// open attaches a pod without isolation, and returns its name and address.
func (g *generator) open(v6 bool) (name string, address netip.Addr) {
	name = pick(g, g.names()...)
	g.attachWith(name, g.pods[name], reference.Policy{})
	return name, same(podAddrs(g.pods[name]), v6)
}

// alike are addresses that differ in one word only: the second, third or last.
var alike = [][2]netip.Addr{
	pair("fd18::1", "fd18:0:1::1"), pair("fd18::1", "fd18::1:0:1"), pair("fd18::1", "fd18::2"),
	pair("fd09::1", "fd09:0:1::1"), pair("fd09::1", "fd09::1:0:1"), pair("fd09::1", "fd09::2"),
	pair("198.18.0.1", "198.18.0.2"), pair("192.0.2.1", "192.0.2.2"),
	// An IPv4 address is stored in the last word, after zeros.
	pair("198.18.0.1", "::1:0:0:7"), pair("198.18.0.1", "::1:0:0:0:7"), pair("192.0.2.1", "fd18::1"),
}

func pair(a, b string) [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr(a), netip.MustParseAddr(b)}
}

// udp returns a datagram of a pod.
func (g *generator) udp(name string, dst netip.Addr, sport, dport uint16) reference.Packet {
	return reference.Packet{Src: same(podAddrs(g.pods[name]), dst.Is6()), Dst: dst, Proto: reference.UDP, Sport: sport, Dport: dport}
}

func (g *generator) step(at string, p reference.Packet, more ...func(*Step)) {
	s := Step{At: at, Packet: &p}
	for _, set := range more {
		set(&s)
	}
	g.steps = append(g.steps, s)
}

func marked(mark string) func(*Step) { return func(s *Step) { s.Mark = mark } }

// translatedTo makes the stack translate the destination.
func translatedTo(backend netip.AddrPort, ipvs bool) func(*Step) {
	return func(s *Step) { s.Backend, s.IPVS = backend, ipvs }
}

// replayed sends a packet with the mark of another one to a similar address. Only the addresses distinguish
// fragments.
func (g *generator) replayed() {
	p := pick(g, alike...)
	if g.chance(30) {
		p[0], p[1] = p[1], p[0]
	}
	name, _ := g.open(p[0].Is6())
	sport := uint16(1000 + g.r.IntN(4))
	first := g.udp(name, p[0], sport, 80)
	first.Fragment, first.ID, first.Size = reference.FirstFragment, uint32(g.r.IntN(12)), 16
	later := first
	later.Fragment = reference.LaterFragment
	g.step(name, first)
	g.step(name, g.udp(name, p[1], sport, 80))
	g.step(name, later, marked("old"))
	whole := g.udp(name, p[0], sport, 80)
	switch g.r.IntN(5) {
	case 0:
		whole.Sport++
	case 1:
		whole.Proto = reference.SCTP
	}
	g.step(name, g.udp(name, p[1], sport, 80))
	g.step(name, whole, marked("old"))
}

// headerless sends a packet that ends with the IP header, with the mark of one that has ports.
func (g *generator) headerless() {
	v6 := g.chance(50)
	name, _ := g.open(v6)
	dst := same(pick(g, strangers[:2], nodeAddrs), v6)
	g.step(name, g.udp(name, dst, 1000, 80))
	g.step(name, g.udp(name, dst, 1001, 80))
	p := g.udp(name, dst, 0, 0)
	p.Proto = pick[uint8](g, 2, 50, 59)
	g.step(name, p, marked("old"))
}

// longChain sends a fragment with as many headers as the programs read.
func (g *generator) longChain() {
	name, _ := g.open(true)
	p := g.udp(name, same(pick(g, strangers[:2], nodeAddrs, remotes["r1"]), true), 1000, 80)
	p.Fragment, p.ID, p.Size = reference.FirstFragment, uint32(g.r.IntN(12)), 16
	g.step(name, p)
	p.Fragment = reference.LaterFragment
	for range 6 + g.r.IntN(3) {
		p.Extensions = append(p.Extensions, pick(g, 0, 43, 60))
	}
	g.step(name, p)
}

// copied makes a rule copy a datagram, whole or in fragments, with its own mark or that of another datagram.
func (g *generator) copied() {
	v6 := g.chance(50)
	name, _ := g.open(v6)
	dst := same(pick(g, strangers[:2], services[:2], nodeAddrs), v6)
	id := uint32(g.r.IntN(12))
	for _, fragment := range []int{reference.Whole, pick(g, reference.Whole, reference.FirstFragment), pick(g, reference.Whole, reference.LaterFragment)} {
		p := g.udp(name, dst, uint16(1000+g.r.IntN(4)), 80)
		if p.Fragment = fragment; fragment != reference.Whole {
			p.ID, p.Size = id, 16
		}
		g.step(name, p, marked(pick(g, "", "", "none", "old")), func(s *Step) { s.Copied = true })
	}
}

// two attaches two pods without isolation.
func (g *generator) two(v6 bool) (a, b string) {
	for len(g.pods) < 2 {
		g.attach(pick(g, "a", "b", "c", "d"), g.r.IntN(maxPods))
	}
	a, _ = g.open(v6)
	for b = a; b == a; b = pick(g, g.names()...) {
	}
	g.attachWith(b, g.pods[b], reference.Policy{})
	return a, b
}

// peerGone continues a flow between two pods after one of them was removed. The stack then routes packets to its
// address.
func (g *generator) peerGone() {
	v6 := g.chance(50)
	a, b := g.two(v6)
	p := g.udp(a, same(podAddrs(g.pods[b]), v6), uint16(1000+g.r.IntN(4)), 80)
	if g.chance(60) {
		p.Proto, p.Flags = reference.TCP, "S"
	}
	g.step(a, p)
	g.remove(b)
	if p.Proto == reference.UDP { // this changes the epoch
		g.attachWith(a, g.pods[a], reference.Policy{Isolated: [2]bool{true, false}})
	}
	g.step(a, p)
	p.Flags = map[bool]string{true: "A"}[p.Proto == reference.TCP]
	g.step(a, p)
}

// ownerGone opens a flow again that a removed pod had opened.
func (g *generator) ownerGone() {
	v6 := g.chance(50)
	a, b := g.two(v6)
	p := g.udp(b, same(podAddrs(g.pods[a]), v6), 1000, 80)
	back := g.udp(a, p.Src, 80, 1000)
	g.step(b, p)
	g.remove(b)
	g.steps = append(g.steps, Step{Age: 600})
	g.step(a, back)
}

// impostor makes connection tracking attribute a masqueraded flow to another client. That client sent no packet
// to the pod, so the pod may not answer it.
func (g *generator) impostor() {
	v6 := g.chance(50)
	name, own := g.open(v6)
	backend, port := netip.AddrPortFrom(own, 8080), uint16(40000+g.r.IntN(1000))
	client, service := same(servers["w1"], v6), same(services[:2], v6)
	request := reference.Packet{Src: client, Dst: service, Proto: reference.UDP, Sport: 1000, Dport: 80}
	answer := reference.Packet{Src: own, Dst: same(nodeAddrs[:2], v6), Proto: reference.UDP, Sport: 8080, Dport: port}
	gateway := g.chance(50)
	if gateway {
		answer.Dst = same(nodeAddrs[2:], v6)
	}
	masquerade := func(s *Step) { s.Backend, s.Masquerade, s.Gateway = backend, port, gateway }
	g.step("uplink", request, masquerade)
	g.step(name, answer)
	g.steps = append(g.steps, Step{Forget: true})
	request.Src = same(pick(g, remotes["r2"], remotes["r3"]), v6) // not valid on this device
	if g.chance(30) {
		request.Src = client.Next()
	}
	g.step("uplink", request, masquerade)
	g.step(name, answer)
}

// answered makes a pod answer a flow that the host or an outside client opened, while the stack translates the
// address as that of a Service.
func (g *generator) answered() {
	v6 := g.chance(60)
	name, own := g.open(v6)
	peer, at := same(pick(g, nodeAddrs[:2], nodeAddrs[2:]), v6), "host"
	if g.chance(30) {
		peer, at = same(services[:2], v6), "uplink"
	}
	port := uint16(1000 + g.r.IntN(4))
	g.step(at, reference.Packet{Src: peer, Dst: own, Proto: reference.UDP, Sport: port, Dport: 80})
	backend := netip.AddrPortFrom(pick(g, same(nodeAddrs, v6), g.podAddr(v6), same(servers["w1"], v6)), 8080)
	for range 2 {
		g.step(name, reference.Packet{Src: own, Dst: peer, Proto: reference.UDP, Sport: 80, Dport: port}, translatedTo(backend, g.chance(60)))
	}
}

// virtual sends through IPVS, to a port or backend that policy may deny.
func (g *generator) virtual() {
	v6 := g.chance(60)
	name := pick(g, g.names()...)
	rule := reference.Rule{Dir: reference.Egress, Ports: pick(g, []uint16{80}, []uint16{80, 8080}, []uint16{443}), Proto: reference.UDP}
	g.attachWith(name, g.pods[name], reference.Policy{Isolated: [2]bool{false, g.chance(80)}, Rules: []reference.Rule{rule}})
	service := same(pick(g, services[:2], services[2:], nodeAddrs[:2], nodeAddrs[2:], strangers[2:]), v6)
	backend := netip.AddrPortFrom(g.backend(v6), pick[uint16](g, 80, 8080, 8080, tunnelPort))
	sport := uint16(1000 + g.r.IntN(4))
	if g.chance(40) { // the mark of a packet to the backend itself
		g.step(name, g.udp(name, backend.Addr(), sport, backend.Port()))
		g.step(name, g.udp(name, service, sport, 80), translatedTo(backend, true), marked("old"))
		return
	}
	p := g.udp(name, service, sport, 80)
	if g.chance(20) {
		g.extend(&p)
	}
	g.step(name, p, translatedTo(backend, true))
	g.step(name, p, translatedTo(backend, true))
}

// newSource gives the address of a pod to another pod, which continues its flow.
func (g *generator) newSource() {
	v6 := g.chance(50)
	name, _ := g.open(v6)
	address := g.pods[name]
	p := g.udp(name, same(pick(g, servers["w1"], remotes["r2"], remotes["r3"], nodeAddrs), v6), 1000, 80)
	g.step(name, p)
	g.remove(name)
	g.steps = append(g.steps, Step{Age: 50 * pick(g, 1, 12)})
	next := pick(g, "e", "f")
	if _, taken := g.pods[next]; taken {
		next = name
	}
	g.attachWith(next, address, reference.Policy{})
	g.step(next, p)
}

// crowd gives several pods the same number of flows. In a small table the next flow of one of them may find no
// entry, because no other pod has more flows.
func (g *generator) crowd() {
	v6 := g.chance(50)
	each := 8 + g.r.IntN(4)
	names := g.names()
	dst := same(servers["w1"], v6)
	for _, name := range names {
		g.attachWith(name, g.pods[name], reference.Policy{})
		for i := range each {
			g.step(name, g.udp(name, dst, uint16(2000+i), 80))
		}
	}
	last := names[len(names)-1]
	for i := range 2 {
		g.step(last, g.udp(last, dst, uint16(2000+each+i), 80))
	}
}

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
