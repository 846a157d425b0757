// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// moreRules stand for the rules of kube-proxy for a LoadBalancer, an external IP, and clients outside the pod ranges that reach a
// cluster IP: it masquerades their packets, too. All lead to pod b port 8080.
const moreRules = `
table %[1]s kube-more {
	chain pre { type nat hook prerouting priority -100; jump services; }
	chain out { type nat hook output priority -100; jump services; }
	chain services {
		%[1]s daddr { %[2]s, %[3]s } meta l4proto { tcp, udp } th dport 80 goto masqueraded
		%[1]s daddr %[4]s meta l4proto { tcp, udp } th dport 83 goto masqueraded
	}
	chain masqueraded { meta mark set meta mark or 0x4000; meta l4proto { tcp, udp } dnat to %[5]s; }
}`

// The addresses of moreRules, and the ranges of those.
const (
	balancer4, external4 = "192.0.2.10", "192.0.2.20"
	balancer6, external6 = "2001:db8:a::10", "2001:db8:a::20"
)

// entry is an address of the Service whose clients the node masquerades.
type entry struct {
	name, to string
	port     uint16
}

// entries returns all such addresses of an IP version.
func (f family) entries() []entry {
	balancer, external := balancer4, external4
	if is6(f.node) {
		balancer, external = balancer6, external6
	}
	return []entry{{"NodePort", f.node, 30080}, {"LoadBalancer", balancer, 80}, {"external IP", external, 80}, {"masqueraded cluster IP", f.service, 83}}
}

// passInvalid removes the rules that drop packets which connection tracking calls invalid: kube-proxy in mode nftables has none.
func (l *lab) passInvalid() {
	for _, f := range []string{"ip", "ip6"} {
		l.load("flush chain " + f + " kube-test forward")
	}
}

// newServiceAttackLab is newServiceLab with the given kind of hooks, and with more entries of the Service.
func newServiceAttackLab(t *testing.T, change func(*linux.Config)) *lab {
	t.Helper()
	l := newLabWith(t, change)
	l.pod("a", 11)
	l.pod("b", 12)
	l.pod("c", 13)
	l.services()
	l.load(fmt.Sprintf(moreRules, "ip", balancer4, external4, service4, "10.1.0.12:8080"))
	l.load(fmt.Sprintf(moreRules, "ip6", balancer6, external6, service6, "[fd01::c]:8080"))
	for ns, via := range map[*netns.NS][2]string{l.outside: {nodeAddr4, nodeAddr6}, l.node: {outsideAddr4, outsideAddr6}} {
		l.must(ns.Do(func() error {
			return errors.Join(route("192.0.2.0/24", via[0]), route("10.96.0.0/16", via[0]), route("2001:db8:a::/64", via[1]), route("fd96::/64", via[1]))
		}))
	}
	for _, ns := range []*netns.NS{l.pods["b"], l.outside, l.node} {
		l.echo(ns, 8080)
	}
	for l.idle() {
	}
	return l
}

// client is a client of a Service, by NodePort or cluster IP.
type client struct {
	name    string
	ns      *netns.NS
	to      string
	port    uint16
	network string
	want    bool
}

// ask runs all clients concurrently. Denied clients count as attacks.
func (l *lab) ask(all []client) {
	l.t.Helper()
	before, denied := l.decided(model.Deny), uint64(0)
	results := make([]error, len(all))
	var wait sync.WaitGroup
	for i, c := range all {
		wait.Go(func() { results[i] = reach(c.ns, c.network, c.to, c.port, together(c.want)) })
	}
	wait.Wait()
	for i, c := range all {
		if !c.want {
			attacks.tried.Add(1)
			denied++
		}
		switch {
		case c.want && results[i] != nil:
			l.t.Errorf("%s %s to %s port %d: want allowed, got %v", c.name, c.network, c.to, c.port, results[i])
		case !c.want && results[i] == nil:
			attacks.through.Add(1)
			l.t.Errorf("got through: %s %s to %s port %d", c.name, c.network, c.to, c.port)
		case !c.want && !traffic.Silent(results[i]):
			l.t.Errorf("%s %s to %s port %d: want silence, got %v", c.name, c.network, c.to, c.port, results[i])
		}
	}
	l.counts(before, denied)
}

// Ingress policy sees the real source, although kube-proxy masquerades: by NodePort, LoadBalancer, external IP and
// cluster IP, for pods, hosts outside and the pod itself.
func TestAttackIngressByNodePort(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		l := newServiceAttackLab(t, change)
		a, b, c := l.pods["a"], l.pods["b"], l.pods["c"]
		try := func(wantA, wantC, wantOut, wantNode bool) {
			t.Helper()
			var all []client
			for _, f := range families {
				for _, network := range []string{"tcp", "udp"} {
					for _, e := range f.entries() {
						all = append(all, client{"a", a, e.to, e.port, network, wantA}, client{"c", c, e.to, e.port, network, wantC},
							client{"outside", l.outside, e.to, e.port, network, wantOut}, client{"the node", l.node, e.to, e.port, network, wantNode},
							client{"b", b, e.to, e.port, network, true}) // a pod reaches itself
					}
					all = append(all, client{"b", b, f.service, 80, network, true})
				}
			}
			l.ask(all)
		}
		l.apply(isolate("b", model.Ingress))
		try(false, false, false, true)
		l.apply(isolate("b", model.Ingress, accept(pods("a"))))
		try(true, false, false, true)
		l.apply(isolate("b", model.Ingress, accept(block(outsideAddr4+"/32")), accept(block(outsideAddr6+"/128"))))
		try(false, false, true, true)
		// A rule with the node's address allows what the node sends, not what it masquerades.
		l.apply(isolate("b", model.Ingress, accept(block(nodeAddr4+"/32")), accept(block(nodeAddr6+"/128"))))
		try(false, false, false, true)
		l.apply(isolate("b", model.Ingress, accept(pods("c"), udp(8080))))
		l.ask([]client{{"c", c, nodeAddr4, 30080, "udp", true}, {"c", c, nodeAddr6, 30080, "udp", true}, {"c", c, nodeAddr4, 30080, "tcp", false}, {"c", c, nodeAddr6, 30080, "tcp", false}})
		l.apply()
		try(true, true, true, true)
	})
}

// A policy change applies to the next packet of a connection that the node masquerades, in both directions.
func TestAttackMasqueradedConnections(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		l := newServiceAttackLab(t, change)
		l.apply()
		var flows []net.Conn
		for _, f := range families {
			for _, network := range []string{"tcp", "udp"} {
				for _, from := range []*netns.NS{l.pods["a"], l.outside} {
					for _, e := range f.entries() {
						l.must(from.Do(func() error {
							c, err := net.Dial(network, net.JoinHostPort(e.to, fmt.Sprint(e.port)))
							flows = append(flows, c)
							return err
						}))
					}
				}
			}
		}
		for _, c := range flows {
			defer c.Close()
			l.must(traffic.Exchange(c, patience))
		}
		l.apply(isolate("b", model.Ingress, accept(pods("a")), accept(block(outsideAddr4+"/32")), accept(block(outsideAddr6+"/128"))))
		for _, c := range flows {
			l.must(traffic.Exchange(c, patience))
		}
		l.apply(isolate("b", model.Ingress, accept(block(nodeAddr4+"/32")), accept(block(nodeAddr6+"/128"))))
		attacks.tried.Add(int64(len(flows)))
		var wait sync.WaitGroup
		for _, c := range flows {
			wait.Go(func() {
				switch err := traffic.Exchange(c, silence); {
				case err == nil:
					attacks.through.Add(1)
					t.Errorf("got through: %s %s to %s after the policy was tightened", c.LocalAddr().Network(), c.LocalAddr(), c.RemoteAddr())
				case !traffic.Silent(err):
					t.Errorf("%s %s to %s after the policy was tightened: want silence, got %v", c.LocalAddr().Network(), c.LocalAddr(), c.RemoteAddr(), err)
				}
			})
		}
		wait.Wait()
	})
}

// A client that policy denies is masqueraded with the address and port that an allowed client
// had: connection tracking has forgotten that one, the flow table has not.
func TestAttackMasqueradedPortOfAnotherClient(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		l := newServiceAttackLab(t, change)
		l.apply(isolate("b", model.Ingress, accept(block(outsideAddr4+"/32")), accept(block(outsideAddr6+"/128"))))
		for i, f := range families {
			from := func(ns *netns.NS) (c net.Conn) {
				l.must(ns.Do(func() (err error) {
					d := net.Dialer{LocalAddr: &net.UDPAddr{Port: 5555 + i}}
					c, err = d.Dial("udp", net.JoinHostPort(f.node, "30080"))
					return err
				}))
				return c
			}
			allowed := from(l.outside)
			l.must(traffic.Exchange(allowed, patience))
			l.forget()
			attacks.tried.Add(1)
			denied := from(l.pods["a"])
			switch err := traffic.Exchange(denied, silence); {
			case err == nil:
				attacks.through.Add(1)
				t.Errorf("got through: pod a to %s, by the port of a client that policy allows", f.node)
			case !traffic.Silent(err):
				t.Errorf("pod a to %s, by the port of a client that policy allows: want silence, got %v", f.node, err)
			}
			denied.Close()
			l.forget()
			l.must(traffic.Exchange(allowed, patience))
			allowed.Close()
		}
	})
}

// When connection tracking forgets a flow, policy decides on its new destination. This holds in
// the middle of a connection to a Service, and for an answer to a connection that reached the
// pod.
func TestAttackForgottenConnections(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		l := newServiceAttackLab(t, change)
		a := l.pods["a"]
		wa, wb := l.wire(a, "eth0"), l.wire(l.pods["b"], "eth0")
		host := l.hostMAC("a")
		outside := blocks(func(f family) string { return f.outside })
		l.apply(isolate("a", model.Egress, append(outside, accept(pods("c"), udp(controlPort)))...))
		wc := l.wire(l.pods["c"], "eth0")
		v := &volley{l: l}
		for i, f := range families {
			// To an allowed backend; kube-proxy would then choose pod b.
			c := l.dial("a", f.service, 81)
			defer c.Close()
			l.load(noServices)
			l.load(fmt.Sprintf(rules, "ip", service4, "10.1.0.12:8080", "10.1.0.12:8080", nodeAddr4+":8080", nodeAddr4, "10.1.0.12"))
			l.load(fmt.Sprintf(rules, "ip6", service6, "[fd01::c]:8080", "[fd01::c]:8080", "["+nodeAddr6+"]:8080", nodeAddr6, "fd01::c"))
			l.forget()
			for n := range 5 {
				word := v.word()
				v.tries = append(v.tries, attempted{fmt.Sprintf("segment %d of a connection to %s that was forgotten, to b", n, f.service), word, wb})
				if _, err := c.Write([]byte(word)); err != nil {
					break // the connection was reset
				}
			}
			set := addressSets[i]
			v.held(control{wa, wc, func(w string) []byte { return udpFrame(wa, host, set.a, set.c, 7, controlPort, w) }})
			// A host outside forges the address of the Service, and ingress policy allows it.
			// DNAT would apply to the pod's answers once connection tracking has forgotten
			// them.
			l.must(l.outside.Do(func() error {
				return addresses("eth0", map[bool]string{false: service4 + "/32", true: service6 + "/128"}[set.v6])
			}))
			l.apply(isolate("a", model.Egress, append(outside, accept(pods("c"), udp(controlPort)))...), isolate("a", model.Ingress, accept(block("0.0.0.0/0")), accept(block("::/0"))))
			wo, up := l.wire(l.outside, "eth0"), l.macIn(l.node, "eth0")
			wo.send(udpFrame(wo, up, f.service, set.a, 81, 4000, "question"))
			if !wa.await("question") {
				t.Fatal("the packet that opens the flow does not arrive")
			}
			l.forget()
			for range 5 {
				v.try(wa, wb, "an answer of a to the Service, whose flow was forgotten, to b", func(word string) []byte {
					return udpFrame(wa, host, set.a, f.service, 4000, 81, word)
				})
			}
			v.held(control{wa, wc, func(w string) []byte { return udpFrame(wa, host, set.a, set.c, 7, controlPort, w) }})
			l.must(l.outside.Do(func() error {
				return withoutAddress("eth0", map[bool]string{false: service4 + "/32", true: service6 + "/128"}[set.v6])
			}))
			l.load(noServices)
			l.services()
			l.forget()
			l.apply(isolate("a", model.Egress, append(outside, accept(pods("c"), udp(controlPort)))...))
		}
	})
}

// fixedPort makes the node masquerade UDP clients with one port, and delivers what arrives at this port without a known
// connection to another port of the client.
const fixedPort = `
table %[1]s kube-fixed {
	chain pre { type nat hook prerouting priority -101; %[1]s daddr %[2]s udp dport 40001 dnat to %[3]s; }
	chain post { type nat hook postrouting priority 99; meta l4proto udp meta mark and 0x4000 != 0 masquerade to :40001; }
}`

// A pod answers a client that the node masquerades. When connection tracking has forgotten that connection, DNAT may deliver
// the answer to another port of the client: policy decides that flow. The client is a process of the node, or a host outside.
func TestAttackOtherPortOfTheClient(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		l := newServiceAttackLab(t, change)
		wb, up := l.wire(l.pods["b"], "eth0"), l.hostMAC("b")
		for i, f := range families {
			backend := []string{"10.1.0.12", "fd01::c"}[i]
			for own, ns := range map[string]*netns.NS{f.node: l.node, []string{outsideAddr4, outsideAddr6}[i]: l.outside} {
				l.load(fmt.Sprintf(fixedPort, []string{"ip", "ip6"}[i], f.node, net.JoinHostPort(own, "9000")))
				var c net.Conn
				var other net.PacketConn
				l.must(ns.Do(func() (err error) {
					if c, err = net.Dial("udp", net.JoinHostPort(f.node, "30080")); err == nil {
						other, err = net.ListenPacket("udp", net.JoinHostPort(own, "9000"))
					}
					return err
				}))
				answer := func() bool {
					l.must(traffic.Exchange(c, patience))
					l.forget()
					wb.send(udpFrame(wb, up, backend, f.node, 8080, 40001, "answer"))
					return hears(other)
				}
				l.apply()
				if !answer() {
					t.Errorf("%s: without policy, DNAT does not deliver the answer", own)
				}
				l.forget()
				l.apply(isolate("b", model.Egress))
				attacks.tried.Add(1)
				if answer() {
					attacks.through.Add(1)
					t.Errorf("got through: an answer of pod b to another port of %s", own)
				}
				other.Close()
				c.Close()
				l.load("delete table " + []string{"ip", "ip6"}[i] + " kube-fixed")
				l.forget()
			}
		}
	})
}
