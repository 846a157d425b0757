// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/fastpath"
	"github.com/isthmus-net/isthmus/test/netns"
)

// translatedFlow is a TCP connection through a Service, as each of its ends sees it.
type translatedFlow struct {
	name           string
	client, server *wire
	toHost         [2]net.HardwareAddr // to which client and server send
	// seen are the two ends as the client and as the server see them, client first.
	seen [2][2]netip.AddrPort
}

// error returns an ICMP error about a packet that one end received: 0 is the client, 1 the server. By default the error goes
// from that end to the other one.
func (f *translatedFlow) error(end int, kind byte, word string) []byte {
	return f.errorFrom([]*wire{f.client, f.server}[end], f.toHost[end], f.seen[end][end].Addr(), end, kind, word)
}

// errorFrom returns that error from another host.
func (f *translatedFlow) errorFrom(from *wire, to net.HardwareAddr, src netip.Addr, end int, kind byte, word string) []byte {
	own, other := f.seen[end][end], f.seen[end][1-end]
	return quotationOf(from, to, src, other.Addr(), kind, other, own, word)
}

// quotationOf returns an ICMP error that quotes a segment from qs to qd.
func quotationOf(from *wire, to net.HardwareAddr, src, dst netip.Addr, kind byte, qs, qd netip.AddrPort, word string) []byte {
	return quotation(from, to, src.String(), dst.String(), kind, layers.IPProtocolTCP, qs.Addr().String(), qd.Addr().String(), qs.Port(), qd.Port(), word)
}

// connectThrough opens a connection from a namespace to an address of a Service, and finds it on the wire of the server.
func (l *lab) connectThrough(name string, from *netns.NS, client, server *wire, toHost [2]net.HardwareAddr, to netip.AddrPort) *translatedFlow {
	l.t.Helper()
	server.receive()
	server.got = nil
	c := l.dialFrom(from, to.Addr().String(), to.Port())
	l.t.Cleanup(func() { c.Close() })
	f := &translatedFlow{name: name, client: client, server: server, toHost: toHost}
	f.seen[0] = [2]netip.AddrPort{netip.MustParseAddrPort(c.LocalAddr().String()), to}
	server.receive()
	for _, frame := range server.got {
		p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
		tcp, ok := p.TransportLayer().(*layers.TCP)
		if !ok || tcp.DstPort != 8080 || !tcp.SYN || is6(to.Addr().String()) != (p.Layer(layers.LayerTypeIPv6) != nil) {
			continue
		}
		ends := p.NetworkLayer().NetworkFlow()
		src, _ := netip.AddrFromSlice(ends.Src().Raw())
		dst, _ := netip.AddrFromSlice(ends.Dst().Raw())
		f.seen[1] = [2]netip.AddrPort{netip.AddrPortFrom(src, uint16(tcp.SrcPort)), netip.AddrPortFrom(dst, uint16(tcp.DstPort))}
		return f
	}
	l.t.Fatalf("%s: the SYN does not arrive at the server", name)
	return nil
}

// quoteLab is a lab with connections through Services of one IP version: of pod a and of outside.
type quoteLab struct {
	*lab
	set            addressSet
	wa, wb, wc, wo *wire
	host           map[string]net.HardwareAddr
	up             net.HardwareAddr
	nodePort       map[string]*translatedFlow // by client: a, outside
	service, away  *translatedFlow            // of a, to b and to outside
}

func newQuoteLab(l *lab, set addressSet, f family) *quoteLab {
	l.t.Helper()
	q := &quoteLab{lab: l, set: set, wa: l.wire(l.pods["a"], "eth0"), wb: l.wire(l.pods["b"], "eth0"), wc: l.wire(l.pods["c"], "eth0"),
		wo: l.wire(l.outside, "eth0"), host: map[string]net.HardwareAddr{"a": l.hostMAC("a"), "b": l.hostMAC("b"), "c": l.hostMAC("c")}, up: l.macIn(l.node, "eth0")}
	nodePort, service := netip.AddrPortFrom(netip.MustParseAddr(f.node), 30080), netip.MustParseAddr(f.service)
	q.nodePort = map[string]*translatedFlow{
		"a":       l.connectThrough("a by NodePort", l.pods["a"], q.wa, q.wb, [2]net.HardwareAddr{q.host["a"], q.host["b"]}, nodePort),
		"outside": l.connectThrough("outside by NodePort", l.outside, q.wo, q.wb, [2]net.HardwareAddr{q.up, q.host["b"]}, nodePort),
	}
	q.service = l.connectThrough("a by Service to b", l.pods["a"], q.wa, q.wb, [2]net.HardwareAddr{q.host["a"], q.host["b"]}, netip.AddrPortFrom(service, 80))
	q.away = l.connectThrough("a by Service to outside", l.pods["a"], q.wa, q.wo, [2]net.HardwareAddr{q.host["a"], q.up}, netip.AddrPortFrom(service, 81))
	return q
}

// trueErrors checks that errors about each flow arrive in both directions, although no policy allows ICMP.
func (q *quoteLab) trueErrors() {
	q.t.Helper()
	for _, f := range []*translatedFlow{q.nodePort["a"], q.nodePort["outside"], q.service, q.away} {
		for _, kind := range errorKinds(q.set.v6) {
			for end, at := range []*wire{f.server, f.client} {
				word := fmt.Sprintf("true-%d-%d-%s", kind, end, f.name)
				[]*wire{f.client, f.server}[end].send(f.error(end, kind, word))
				if !at.await(word) {
					q.t.Errorf("%s: an error of type %d from the %s does not arrive", f.name, kind, []string{"client", "server"}[end])
				}
			}
		}
	}
}

// forge sends errors about flows of others, also with the tuple after masquerading.
func (q *quoteLab) forge(v *volley) {
	addr := netip.MustParseAddr
	a, c, out := addr(q.set.a), addr(q.set.c), addr(q.set.out)
	ofA, ofOut := q.nodePort["a"], q.nodePort["outside"]
	for _, kind := range errorKinds(q.set.v6) {
		for _, k := range []struct {
			what     string
			from, at *wire
			mac      net.HardwareAddr
			src      netip.Addr
			flow     *translatedFlow
			end      int // that received the quoted packet
		}{
			{"outside quotes the NodePort flow of a to the node", q.wo, q.wb, q.up, out, ofA, 0},
			{"a quotes the NodePort flow of outside to the node", q.wa, q.wb, q.host["a"], a, ofOut, 0},
			{"c quotes the NodePort flow of a to the node", q.wc, q.wb, q.host["c"], c, ofA, 0},
			{"c quotes the NodePort flow of outside to the node", q.wc, q.wb, q.host["c"], c, ofOut, 0},
			{"c quotes the flow of a to the Service", q.wc, q.wb, q.host["c"], c, q.service, 0},
			{"c quotes the flow of a and outside to the Service", q.wc, q.wo, q.host["c"], c, q.away, 0},
			{"c quotes what b received by NodePort, to the node", q.wc, q.wa, q.host["c"], c, ofA, 1},
			{"c quotes what b received by NodePort, to the node, for outside", q.wc, q.wo, q.host["c"], c, ofOut, 1},
			{"c quotes what b received of a by the Service, to a", q.wc, q.wa, q.host["c"], c, q.service, 1},
		} {
			v.try(k.from, k.at, fmt.Sprintf("type %d: %s", kind, k.what), func(word string) []byte {
				return k.flow.errorFrom(k.from, k.mac, k.src, k.end, kind, word)
			})
		}
		// The masqueraded tuple, as b sees it: only the node knows it.
		b, masqueraded := addr(q.set.b), ofOut.seen[1][0]
		for _, k := range []struct {
			what     string
			from, at *wire
			mac      net.HardwareAddr
			src, dst netip.Addr
		}{
			{"a to b", q.wa, q.wb, q.host["a"], a, b},
			{"c to b", q.wc, q.wb, q.host["c"], c, b},
			{"a to c", q.wa, q.wc, q.host["a"], a, c},
			{"outside to c", q.wo, q.wc, q.up, out, c},
			{"b to c", q.wb, q.wc, q.host["b"], b, c},
			{"b to a", q.wb, q.wa, q.host["b"], b, a},
		} {
			for _, back := range []bool{false, true} {
				qs, qd := netip.AddrPortFrom(b, 8080), masqueraded
				if back {
					qs, qd = qd, qs
				}
				v.try(k.from, k.at, fmt.Sprintf("type %d: %s quotes the masqueraded flow, reverse %t", kind, k.what, back), func(word string) []byte {
					return quotationOf(k.from, k.mac, k.src, k.dst, kind, qs, qd, word)
				})
			}
		}
	}
}

// ICMP errors about translated flows arrive at the ends of the flow. They arrive nowhere else, from no other host or pod, and no
// longer than policy allows the flow. This also holds where nothing drops packets that connection tracking calls invalid.
func TestAttackErrorsOfServices(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		l := newServiceAttackLab(t, change)
		l.passInvalid()
		control7 := udp(controlPort)
		// Pod a may send anything, so that only the ingress policies of others hold its packets.
		usual := []*model.Policy{
			isolate("a", model.Ingress, accept(pods("c"), control7)),
			isolate("b", model.Ingress, accept(pods("a"), tcp(8080), control7), accept(block(outsideAddr4+"/32"), tcp(8080)),
				accept(block(outsideAddr6+"/128"), tcp(8080))),
			isolate("c", model.Ingress, accept(block("0.0.0.0/0"), control7), accept(block("::/0"), control7)),
			isolate("c", model.Egress, accept(pods("b"), control7), accept(pods("a"), control7)),
		}
		v := &volley{l: l}
		for i, f := range families {
			l.apply(usual...)
			q := newQuoteLab(l, addressSets[i], f)
			set := q.set
			q.trueErrors()
			controls := []control{
				{q.wa, q.wb, func(w string) []byte { return udpFrame(q.wa, q.host["a"], set.a, set.b, 7, controlPort, w) }},
				{q.wa, q.wc, func(w string) []byte { return udpFrame(q.wa, q.host["a"], set.a, set.c, 7, controlPort, w) }},
				{q.wc, q.wa, func(w string) []byte { return udpFrame(q.wc, q.host["c"], set.c, set.a, 7, controlPort, w) }},
				{q.wa, q.wo, func(w string) []byte { return udpFrame(q.wa, q.host["a"], set.a, set.out, 7, controlPort, w) }},
				{q.wo, q.wc, func(w string) []byte { return udpFrame(q.wo, q.up, set.out, set.c, 7, controlPort, w) }},
			}
			l.idleUntilQuiet() // the budgets of errors refill
			q.forge(v)
			v.held(controls...)
			l.idleUntilQuiet()
			q.trueErrors()
			// A stricter policy: the errors of its own ends pass no longer either.
			l.apply(append(usual[:1:1], isolate("b", model.Ingress, accept(pods("a"), control7)), usual[2], usual[3])...)
			for _, kind := range errorKinds(set.v6) {
				for _, flow := range []*translatedFlow{q.nodePort["a"], q.nodePort["outside"], q.service} {
					v.try(flow.client, flow.server, fmt.Sprintf("type %d: %s, after the policy was tightened", kind, flow.name), func(word string) []byte {
						return flow.error(0, kind, word)
					})
				}
			}
			q.forge(v)
			v.held(controls...)
		}
	})
}

// strangers is a lab of two nodes: pods a and d, one on each, are no ends of the flows of b with friend, on its node, and with
// distant, on the other.
type strangers struct {
	nodes
	wires map[string]*wire
	hosts map[string]net.HardwareAddr
}

func newStrangers(t *testing.T, change func(*linux.Config)) *strangers {
	t.Helper()
	s := &strangers{nodes: newNodes(t, change), wires: make(map[string]*wire), hosts: make(map[string]net.HardwareAddr)}
	near, far := s.nodes[0], s.nodes[1]
	near.pod("a", 11)
	near.pod("b", 12)
	near.pod("friend", 13)
	far.pod("distant", 132)
	far.pod("d", 133)
	near.echo(near.pods["b"], 80)
	control7 := []model.Rule{accept(pods("a"), udp(controlPort)), accept(pods("d"), udp(controlPort))}
	s.apply(isolate("b", model.Ingress, append(control7, accept(pods("friend"), tcp(80)), accept(pods("distant"), tcp(80)))...),
		isolate("friend", model.Ingress, control7...), isolate("distant", model.Ingress, control7...))
	for _, l := range s.nodes {
		for name, ns := range l.pods {
			s.wires[name], s.hosts[name] = near.wire(ns, "eth0"), l.hostMAC(name)
		}
	}
	return s
}

// A pod is no router: it cannot reach another pod by an error about a flow of others, on the same node or from another one,
// although its own policy lets it send anything. A router still can.
func TestAttackErrorsOfOthers(t *testing.T) {
	t.Parallel()
	for _, mode := range []fabric.Mode{fabric.Routes, fabric.VXLAN} {
		for _, forwarding := range []fastpath.Forwarding{fastpath.Direct, fastpath.Stack} {
			t.Run(fmt.Sprintf("%s/%s", mode, forwarding), func(t *testing.T) {
				s := newStrangers(t, func(c *linux.Config) { c.Fabric.Mode, c.Forwarding = mode, forwarding })
				for i, f := range addressSets {
					addr := map[string]string{"a": f.a, "b": f.b, "friend": f.c, "distant": []string{"10.1.0.132", "fd01::84"}[i], "d": []string{"10.1.0.133", "fd01::85"}[i]}
					s.quoteFlow("friend", s.nodes[0].pods["friend"], addr, "")
					router := ""
					if mode == fabric.Routes {
						router = f.out
					}
					s.quoteFlow("distant", s.nodes[1].pods["distant"], addr, router)
				}
			})
		}
	}
}

// quoteFlow opens a flow to b, about which strangers send errors to both ends. router is the address of the other node, if its
// errors arrive by the uplink.
func (s *strangers) quoteFlow(name string, client *netns.NS, addr map[string]string, router string) {
	near := s.nodes[0]
	near.t.Helper()
	c := near.dialFrom(client, addr["b"], 80)
	near.t.Cleanup(func() { c.Close() })
	kind, port := errorKinds(is6(addr["b"]))[0], localPort(c)
	quote := func(from *wire, mac net.HardwareAddr, src, to, word string) []byte {
		if to == "b" { // quotes a packet that b sent
			return quotation(from, mac, src, addr["b"], kind, layers.IPProtocolTCP, addr["b"], addr[name], 80, port, word)
		}
		return quotation(from, mac, src, addr[name], kind, layers.IPProtocolTCP, addr[name], addr["b"], port, 80, word)
	}
	v := &volley{l: near}
	controls := []control{{s.wires[name], s.wires["b"], func(w string) []byte { return quote(s.wires[name], s.hosts[name], addr[name], "b", w) }}}
	for _, attacker := range []string{"a", "d"} {
		for _, victim := range []string{"b", name} {
			from, host := s.wires[attacker], s.hosts[attacker]
			v.try(from, s.wires[victim], fmt.Sprintf("%s quotes the flow of %s and b to %s", attacker, name, addr[victim]), func(word string) []byte {
				return quote(from, host, addr[attacker], victim, word)
			})
			controls = append(controls, control{from, s.wires[victim], func(w string) []byte {
				return udpFrame(from, host, addr[attacker], addr[victim], 7, controlPort, w)
			}})
		}
	}
	if router != "" {
		w := near.wire(s.nodes[1].node, "eth0")
		controls = append(controls, control{w, s.wires["b"], func(word string) []byte {
			return quote(w, near.macIn(near.node, "eth0"), router, "b", word)
		}})
	}
	v.held(controls...)
}
