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
		(*generator).peerGone, (*generator).ownerGone, (*generator).impostor, (*generator).ownService, (*generator).answered,
		(*generator).virtual, (*generator).virtual, (*generator).newSource, (*generator).copied,
		(*generator).throughNAT, (*generator).throughNAT, (*generator).backendItself, (*generator).portTaken, (*generator).foreignQuote,
		(*generator).answersFirst, (*generator).answersFirst, (*generator).stale,
		(*generator).backendDenied, (*generator).otherDevice,
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
	s := Step{At: at, Packet: &p, Unhinted: g.chance(4)}
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

// stale sends a packet with the mark of an earlier round: its own record has replaced the record of that mark.
func (g *generator) stale() {
	v6 := g.chance(50)
	name, _ := g.open(v6)
	sport := uint16(1000 + g.r.IntN(4))
	first := g.udp(name, same(services[:2], v6), sport, 80)
	g.step(name, first)
	g.steps = append(g.steps, Step{Skip: true})
	g.step(name, g.udp(name, same(pick(g, services[:2], services[2:]), v6), sport, 80), marked("old"))
	g.step(name, first)
}

// backendDenied sends to a Service whose new backend policy denies. This ends the flow, so no answer may pass any more.
func (g *generator) backendDenied() {
	v6 := g.chance(50)
	name := pick(g, g.names()...)
	g.attachWith(name, g.pods[name], reference.Policy{Isolated: [2]bool{true, true}, Rules: []reference.Rule{{Dir: reference.Egress, Parties: []string{"w1"}}}})
	sport := uint16(1000 + g.r.IntN(4))
	request := g.udp(name, same(pick(g, services[:2], services[2:]), v6), sport, 80)
	answer := reference.Packet{Src: request.Dst, Dst: request.Src, Proto: reference.UDP, Sport: 80, Dport: sport}
	to := func(backend string) func(*Step) {
		return func(s *Step) {
			s.Backend, s.Fresh = netip.AddrPortFrom(same(servers[backend], v6), 8080), true
		}
	}
	g.step(name, request, to("w1"))
	if g.chance(50) {
		g.step("uplink", answer)
	}
	g.step(name, request, to("w2"))
	g.step("uplink", answer)
}

// otherDevice continues a flow with a pod of another node by a device that does not lead there.
func (g *generator) otherDevice() {
	v6 := g.chance(50)
	_, own := g.open(v6)
	remote := pick(g, "r1", "r2")
	p := reference.Packet{Src: same(remotes[remote], v6), Dst: own, Proto: reference.UDP, Sport: uint16(1000 + g.r.IntN(4)), Dport: 80}
	right, wrong := "uplink", "tunnel"
	if remote == "r2" {
		right, wrong = wrong, right
	}
	g.step(right, p)
	g.step(wrong, p)
	g.step(right, p)
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
		p.Extensions = append(p.Extensions, pick(g, 0, 43, 51, 60))
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

// ownService makes a process of the node call a pod by a Service; the node replaces its port. Then connection tracking forgets
// the flow, and gives the port to another process, or the answer to another port.
func (g *generator) ownService() {
	v6 := g.chance(50)
	name, own := g.open(v6)
	if g.chance(70) {
		g.attachWith(name, g.pods[name], reference.Policy{Isolated: [2]bool{g.chance(50), true}})
	}
	backend, port := netip.AddrPortFrom(own, 8080), uint16(40000+g.r.IntN(1000))
	node := same(nodeAddrs[:2], v6)
	request := reference.Packet{Src: node, Dst: same(services[:2], v6), Proto: pick[uint8](g, reference.UDP, reference.TCP),
		Sport: uint16(1000 + g.r.IntN(4)), Dport: 80}
	answer := reference.Packet{Src: own, Dst: node, Proto: request.Proto, Sport: 8080, Dport: port}
	if request.Proto == reference.TCP {
		request.Flags, answer.Flags = "S", "SA"
	}
	masquerade := func(s *Step) { s.Backend, s.Masquerade = backend, port }
	if g.chance(30) { // a process that uses this port itself
		direct := request
		direct.Dst, direct.Dport, direct.Sport = own, 8080, port
		g.step("host", direct)
	}
	g.step("host", request, masquerade)
	g.step(name, answer)
	if g.chance(40) {
		g.attachWith(name, g.pods[name], reference.Policy{Isolated: [2]bool{true, true}})
		g.step(name, answer)
	}
	g.steps = append(g.steps, Step{Forget: true})
	switch g.r.IntN(3) {
	case 0:
		request.Sport += 10
		g.step("host", request, masquerade)
		g.step(name, answer)
	case 1:
		g.step(name, answer, translatedTo(netip.AddrPortFrom(node, request.Sport+pick[uint16](g, 0, 10)), false))
	case 2:
		request.Src = same(servers["w1"], v6)
		g.step("uplink", request, masquerade)
		g.step(name, answer)
	}
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
