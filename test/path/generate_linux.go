// SPDX-License-Identifier: Apache-2.0

package path

import (
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/test/path/reference"
)

// Generate makes a sequence of steps from a seed: pods with policies, and about the given number of packets of a
// few conversations, with changes in between.
func Generate(seed uint64, packets int) []Step {
	g := &generator{r: rand.New(rand.NewPCG(seed, 0)), pods: make(map[string]int)}
	if seed%2 == 0 {
		g.steps = append(g.steps, Step{Form: "hook"})
	}
	g.ipvs = g.chance(40)
	if g.chance(8) {
		g.steps = append(g.steps, Step{Upgrade: "marks"})
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		if name < "c" || g.chance(70) {
			g.attach(name, int(name[0]-'a'))
		}
	}
	for range packets {
		if g.chance(3) {
			g.change()
		}
		g.packet()
	}
	for i := range g.steps {
		g.steps[i].Unhinted = g.steps[i].Unhinted || i%64 == 31 && g.steps[i].Packet != nil
	}
	return g.steps
}

type generator struct {
	r     *rand.Rand
	steps []Step
	pods  map[string]int // the index of the addresses of each pod
	talks []talk
	// ipvs is the mode of kube-proxy. defragment applies to the packets that the generator adds next.
	ipvs, defragment bool
}

// talk is a conversation between two ends. The first end opens it.
type talk struct {
	ends  [2]netip.AddrPort
	proto uint8
	// next are the next TCP sequence numbers.
	next    [2]uint32
	backend netip.AddrPort // the backend, if the second end is a Service
	masq    uint16
	ipvs    bool
}

func (g *generator) chance(percent int) bool { return g.r.IntN(100) < percent }

func pick[T any](g *generator, all ...T) T { return all[g.r.IntN(len(all))] }

// attach adds a pod, or replaces its policy.
func (g *generator) attach(name string, address int) {
	if was, ok := g.pods[name]; ok {
		address = was
	}
	g.attachWith(name, address, g.policy())
}

func (g *generator) attachWith(name string, address int, policy reference.Policy) {
	g.pods[name] = address
	g.steps = append(g.steps, Step{Pod: &PodStep{Name: name, Address: address, Limited: name == "c", Policy: policy}})
}

func (g *generator) remove(name string) {
	delete(g.pods, name)
	g.steps = append(g.steps, Step{Remove: name})
}

func (g *generator) policy() (p reference.Policy) {
	p.Isolated = [2]bool{g.chance(65), g.chance(55)}
	for range g.r.IntN(4) {
		r := reference.Rule{Dir: reference.Direction(g.r.IntN(2))}
		if g.chance(70) {
			for range 1 + g.r.IntN(4) {
				r.Parties = append(r.Parties, pick(g, parties...))
			}
		}
		if g.chance(60) {
			r.Proto = pick[uint8](g, reference.TCP, reference.TCP, reference.UDP, reference.SCTP)
			for range g.r.IntN(3) {
				r.Ports = append(r.Ports, pick(g, ports...))
			}
		}
		p.Rules = append(p.Rules, r)
	}
	return p
}

// change adds a step that is not a packet.
func (g *generator) change() {
	switch n := g.r.IntN(100); {
	case n < 60:
		g.attach(pick(g, g.names()...), 0)
	case n < 75:
		g.steps = append(g.steps, Step{Age: 50 * pick(g, 1, 1, 2, 2, 4, 12)})
	case n < 85:
		name := pick(g, g.names()...)
		address := g.pods[name]
		g.remove(name)
		if g.chance(80) { // another pod gets its address
			g.attach(pick(g, name, "e", "f"), address)
		}
	case n < 90:
		g.attach(pick(g, "c", "d", "e", "f"), g.r.IntN(maxPods))
	case n < 92:
		g.steps = append(g.steps, Step{Adopt: 1 + g.r.IntN(3)})
	case n < 93:
		g.steps = append(g.steps, Step{Upgrade: pick(g, "marks", "done")})
	case n < 96:
		g.steps = append(g.steps, Step{Forget: true})
	case n < 97:
		g.steps = append(g.steps, Step{Form: pick(g, "hook", "filter")})
	default:
		if t, ok := g.known(); ok && (t.proto == reference.TCP || t.proto == reference.UDP) {
			p := t.packet(0)
			g.steps = append(g.steps, Step{Track: true, Packet: &p})
		}
	}
}

func (g *generator) names() (all []string) {
	for _, name := range parties[:maxPods] {
		if _, ok := g.pods[name]; ok {
			all = append(all, name)
		}
	}
	if len(all) == 0 {
		return slices.Clone(parties[:2]) // callers append
	}
	return all
}

// podAddr returns an address of an attached pod.
func (g *generator) podAddr(v6 bool) netip.Addr {
	name := pick(g, g.names()...)
	return same(podAddrs(g.pods[name]), v6)
}

// anyAddr returns any address that may be an end of a flow.
func (g *generator) anyAddr(v6 bool) netip.Addr {
	switch n := g.r.IntN(100); {
	case n < 45:
		return g.podAddr(v6)
	case n < 65:
		return same(remotes[pick(g, "r1", "r1", "r2", "r3")], v6)
	case n < 80:
		return same(servers[pick(g, "w1", "w2")], v6)
	case n < 90:
		return same(pick(g, services[:2], services[2:]), v6)
	case n < 93:
		return same(nodeAddrs, v6)
	}
	if g.chance(15) {
		return same(pick(g, listed[:2], listed[2:4], listed[4:]), v6)
	}
	return same(pick(g, nodeAddrs[:2], nodeAddrs[2:], broadcasts, otherNode, strangers[:2], strangers[2:], podAddrs(g.r.IntN(maxPods))), v6)
}

// known picks a conversation, usually the latest.
func (g *generator) known() (*talk, bool) {
	if len(g.talks) == 0 {
		return nil, false
	}
	if g.chance(50) {
		return &g.talks[max(0, len(g.talks)-1-g.r.IntN(3))], true
	}
	return &g.talks[g.r.IntN(len(g.talks))], true
}

// begin starts a conversation that involves a pod.
func (g *generator) begin() *talk {
	v6 := g.chance(45)
	own, other := g.podAddr(v6), g.anyAddr(v6)
	for range 3 {
		if own == other { // policy does not apply to a pod's traffic with itself
			other = g.anyAddr(v6)
		}
	}
	if g.chance(40) {
		own, other = other, own
	}
	t := talk{proto: pick[uint8](g, reference.TCP, reference.TCP, reference.TCP, reference.UDP, reference.UDP, reference.SCTP, icmp(v6), 47)}
	sport, dport := uint16(1000+g.r.IntN(4)), pick(g, append(ports, 9999)...)
	switch {
	case t.proto == icmp(v6):
		dport = sport
	case t.proto == 47:
		sport, dport = 0, 0
	case g.chance(10):
		sport = dport
	}
	t.ends = [2]netip.AddrPort{netip.AddrPortFrom(own, sport), netip.AddrPortFrom(other, dport)}
	t.next = [2]uint32{100, 5000}
	if (isService(other) || isNode(other)) && g.chance(80) {
		t.backend = netip.AddrPortFrom(g.backend(v6), pick[uint16](g, 8080, 8080, 80))
		t.ipvs = g.ipvs
		if isNode(other) || g.chance(20) {
			t.masq = uint16(40000 + g.r.IntN(1000))
		}
	}
	g.talks = append(g.talks, t)
	return &g.talks[len(g.talks)-1]
}

func (g *generator) backend(v6 bool) netip.Addr {
	if g.chance(60) {
		return g.podAddr(v6)
	}
	return same(pick(g, remotes["r1"], remotes["r3"], servers["w1"], servers["w2"], nodeAddrs, nodeAddrs), v6)
}

func icmp(v6 bool) uint8 {
	if v6 {
		return reference.ICMPv6
	}
	return reference.ICMP
}

func isService(a netip.Addr) bool {
	for _, s := range services {
		if s == a {
			return true
		}
	}
	return false
}

func isNode(a netip.Addr) bool { return slices.Contains(nodeAddrs, a) }

// packet returns a packet of the conversation that an end sends.
func (t *talk) packet(from int) reference.Packet {
	p := reference.Packet{Src: t.ends[from].Addr(), Dst: t.ends[1-from].Addr(), Proto: t.proto,
		Sport: t.ends[from].Port(), Dport: t.ends[1-from].Port()}
	switch t.proto {
	case reference.ICMP, reference.ICMPv6:
		p.Dport, p.Type = 0, []uint8{8, 0}[from]
		if p.V6() {
			p.Type = []uint8{128, 129}[from]
		}
	case 47:
		p.Size = 8
	}
	return p
}
