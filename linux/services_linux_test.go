// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// rules stand for kube-proxy in nftables mode. DNAT happens when a packet is received. Marked
// packets are masqueraded when they leave; packets from a pod back to itself are marked.
const rules = `
table %[1]s kube-test {
	chain pre { type nat hook prerouting priority -100; jump services; }
	chain out { type nat hook output priority -100; jump services; }
	chain services {
		%[1]s daddr %[2]s meta l4proto { tcp, udp } th dport 80 goto local
		%[1]s daddr %[2]s meta l4proto { tcp, udp } th dport 81 dnat to %[4]s
		%[1]s daddr %[2]s meta l4proto { tcp, udp } th dport 82 dnat to %[5]s
		%[1]s daddr %[6]s meta l4proto { tcp, udp } th dport 30080 jump mark-for-masquerade
		%[1]s daddr %[6]s meta l4proto { tcp, udp } th dport 30080 goto local
	}
	chain local {
		%[1]s saddr %[7]s meta mark set meta mark or 0x4000
		meta l4proto { tcp, udp } dnat to %[3]s
	}
	chain mark-for-masquerade { meta mark set meta mark or 0x4000; }
	chain forward { type filter hook forward priority 0; ct state invalid drop; }
	chain post { type nat hook postrouting priority 100; meta mark and 0x4000 != 0 masquerade; }
}`

// noServices removes the rules, and keeps those of others.
const noServices = "delete table ip kube-test; delete table ip6 kube-test"

// The addresses of the Service. Port 80 goes to pod b port 8080, 81 to outside port 8080, 82 to
// the node's own port 8080. NodePort 30080 goes to pod b.
const (
	service4 = "10.96.0.10"
	service6 = "fd96::10"
)

func (l *lab) services() {
	l.t.Helper()
	l.load(fmt.Sprintf(rules, "ip", service4, "10.1.0.12:8080", outsideAddr4+":8080", nodeAddr4+":8080", nodeAddr4, "10.1.0.12"))
	l.load(fmt.Sprintf(rules, "ip6", service6, "[fd01::c]:8080", "["+outsideAddr6+"]:8080", "["+nodeAddr6+"]:8080", nodeAddr6, "fd01::c"))
}

func (l *lab) load(ruleset string) {
	l.t.Helper()
	l.must(l.node.Do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(ruleset)
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, text)
		}
		return nil
	}))
}

// newServiceLab returns a lab with pods a and b, and a server at every backend.
func newServiceLab(t *testing.T) *lab { return serviceLab(t, newLab(t)) }

func serviceLab(t *testing.T, l *lab) *lab {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		netns.Missing(t, "needs nft: make test installs it")
	}
	l.pod("a", 11)
	l.pod("b", 12)
	l.services()
	l.echo(l.pods["b"], 8080)
	l.echo(l.outside, 8080)
	if l.plugin == nil {
		l.echo(l.node, 8080)
	} else { // routes of plugins do not choose the source of answers
		for _, a := range []string{nodeAddr4, nodeAddr6} {
			l.must(traffic.ServersFor(l.t).Echo(l.node, netip.AddrPortFrom(netip.MustParseAddr(a), 8080), model.TCP, model.UDP))
		}
	}
	// The kernel needs time until a new IPv6 address is usable.
	for began := time.Now(); reach(l.node, "tcp", outsideAddr6, 8080, silence) != nil; {
		if time.Since(began) > patience {
			t.Fatal("the network outside does not come up")
		}
	}
	return l
}

type family struct{ service, node, anywhere, outside, own, alone string }

var families = []family{
	{service4, nodeAddr4, "0.0.0.0/0", outsideAddr4 + "/32", nodeAddr4 + "/32", service4 + "/32"},
	{service6, nodeAddr6, "::/0", outsideAddr6 + "/128", nodeAddr6 + "/128", service6 + "/128"},
}

// try is one attempt to reach an address from pod a or b.
type try struct {
	from, network, to string
	port              uint16
	want              bool
}

// attempt makes all attempts concurrently.
func (l *lab) attempt(tries []try) {
	l.t.Helper()
	before, denied := l.decided(model.Deny), uint64(0)
	results := make([]error, len(tries))
	var wait sync.WaitGroup
	for i, t := range tries {
		wait.Go(func() { results[i] = reach(l.pods[t.from], t.network, t.to, t.port, together(t.want)) })
	}
	wait.Wait()
	for i, t := range tries {
		if got := results[i] == nil; got != t.want {
			l.t.Errorf("%s from %s to %s port %d: allowed %t, want %t (%v)", t.network, t.from, t.to, t.port, got, t.want, results[i])
		}
		if !t.want {
			denied++
			if results[i] != nil && !traffic.Silent(results[i]) {
				l.t.Errorf("%s from %s to %s port %d: want silence, got %v", t.network, t.from, t.to, t.port, results[i])
			}
		}
	}
	l.counts(before, denied)
}

// judge tries each port of the Service and its NodePort, with every protocol and IP version.
func (l *lab) judge(from string, wants [4]bool) {
	l.t.Helper()
	var tries []try
	for _, f := range families {
		for _, network := range []string{"tcp", "udp"} {
			for i, port := range []uint16{80, 81, 82} {
				tries = append(tries, try{from, network, f.service, port, wants[i]})
			}
			tries = append(tries, try{from, network, f.node, 30080, wants[3]})
		}
	}
	l.attempt(tries)
}

// blocks returns rules for both IP versions.
func blocks(of func(f family) string, ports ...model.PortMatch) (rules []model.Rule) {
	for _, f := range families {
		rules = append(rules, accept(block(of(f)), ports...))
	}
	return rules
}

// Egress to a Service is decided on the backend, at the netfilter hooks and by an nftables
// rule.
func TestEgressToServices(t *testing.T) {
	t.Parallel()
	t.Run("hooks", func(t *testing.T) { egressToServices(newServiceLab(t)) })
	t.Run("rule", func(t *testing.T) {
		l := newServiceLab(t)
		l.byRule = true
		l.renew()
		l.load("flush ruleset")
		if len(l.problems()) != 2 {
			t.Errorf("problems after another process flushed the rules: %q", l.problems())
		}
		l.services()
		l.must(l.add("a", 11)) // repairs
		l.sound()
		l.load("flush ruleset")
		l.services()
		for began := time.Now(); len(l.problems()) > 0 && time.Since(began) < patience; {
			l.idle() // repairs, too
		}
		l.sound()
		if n := l.status().Repairs; n < 2 {
			t.Errorf("%d repairs, want 2 at least", n)
		}
		egressToServices(l)
	})
}

func egressToServices(l *lab) {
	l.apply()
	l.judge("a", [4]bool{true, true, true, true})
	// Policy allows the backend; no rule contains the address of the Service.
	l.apply(isolate("a", model.Egress, accept(pods("b"))))
	l.judge("a", [4]bool{true, false, false, true})
	l.apply(isolate("a", model.Egress, blocks(func(f family) string { return f.outside })...))
	l.judge("a", [4]bool{false, true, false, false})
	l.apply(isolate("a", model.Egress, blocks(func(f family) string { return f.own })...))
	l.judge("a", [4]bool{false, false, true, false})
	// Neither the address nor the port of the Service allows anything.
	l.apply(isolate("a", model.Egress, blocks(func(f family) string { return f.alone })...))
	l.judge("a", [4]bool{})
	l.apply(isolate("a", model.Egress, blocks(func(f family) string { return f.anywhere }, tcp(80), tcp(30080))...))
	l.judge("a", [4]bool{})
	l.apply(isolate("a", model.Egress))
	l.judge("a", [4]bool{})
	// A pod reaches itself, also by a Service.
	l.apply(isolate("b", model.Egress), isolate("b", model.Ingress))
	l.judge("b", [4]bool{true, false, false, true})
	// Ingress is decided on the pod that sent, not on the Service.
	l.apply(isolate("b", model.Ingress, accept(pods("a"), tcp(8080))))
	for _, f := range families {
		l.attempt([]try{{"a", "tcp", f.service, 80, true}, {"a", "udp", f.service, 80, false}})
	}
	l.apply(isolate("b", model.Ingress, accept(pods("b"))))
	for _, f := range families {
		l.attempt([]try{{"a", "tcp", f.service, 80, false}, {"b", "tcp", f.service, 80, true}, {"b", "udp", f.service, 80, true}})
	}
}

// randomPorts makes the node replace the port of every masqueraded client, as kube-proxy does, and masquerade its own
// processes, too.
const randomPorts = `
table %[1]s kube-random {
	chain out { type filter hook output priority -150; %[1]s daddr %[2]s th dport 80 meta mark set meta mark or 0x4000; }
	chain post { type nat hook postrouting priority 99; meta mark and 0x4000 != 0 masquerade fully-random; }
}`

// A process of the node calls a pod of this node by a Service. The pod may open nothing, but it answers, although the node
// restores the port of the process first. Known connections go on after a policy change and a restart.
func TestNodeCallsItsPodByServices(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		l := newServiceAttackLab(t, change)
		l.load(fmt.Sprintf(randomPorts, "ip", service4))
		l.load(fmt.Sprintf(randomPorts, "ip6", service6))
		l.apply(isolate("b", model.Egress), isolate("b", model.Ingress))
		var flows []net.Conn
		for _, f := range families {
			for _, network := range []string{"tcp", "udp"} {
				for _, to := range []string{net.JoinHostPort(f.service, "80"), net.JoinHostPort(f.node, "30080")} {
					l.must(l.node.Do(func() error {
						c, err := net.DialTimeout(network, to, patience)
						if err == nil {
							flows = append(flows, c)
							t.Cleanup(func() { c.Close() })
						}
						return err
					}))
				}
			}
		}
		l.goOn(flows)
		l.apply(isolate("b", model.Egress, accept(pods("a"))), isolate("b", model.Ingress))
		l.goOn(flows)
		l.renew()
		l.goOn(flows)
	})
}

// goOn exchanges data on connections.
func (l *lab) goOn(flows []net.Conn) {
	l.t.Helper()
	for _, c := range flows {
		if err := traffic.Exchange(c, patience); err != nil {
			l.t.Fatalf("%s %s: %v", c.RemoteAddr().Network(), c.RemoteAddr(), err)
		}
	}
}

// A policy change applies to connections to Services, also while only the other end sends; a
// restart of the agent does not cut them.
func TestConnectionsToServices(t *testing.T) {
	t.Parallel()
	l := newServiceLab(t)
	outside := blocks(func(f family) string { return f.outside })
	allow := isolate("a", model.Egress, append(outside, accept(pods("b")))...)
	other := isolate("a", model.Egress, append(outside, accept(pods("b")), accept(block("10.7.0.0/16")))...)
	l.apply(allow)
	var flows []net.Conn
	for _, f := range families {
		for _, port := range []string{"80", "81"} {
			for _, network := range []string{"tcp", "udp"} {
				l.must(l.pods["a"].Do(func() error {
					c, err := net.Dial(network, net.JoinHostPort(f.service, port))
					flows = append(flows, c)
					return err
				}))
			}
		}
	}
	l.goOn(flows)
	l.apply(other)
	l.goOn(flows)
	l.renew()
	l.goOn(flows)
	l.apply(allow)
	l.goOn(flows)
	l.apply(isolate("a", model.Egress))
	for _, c := range flows {
		defer c.Close()
		if err := traffic.Exchange(c, silence); err == nil {
			t.Errorf("%s %s: the connection goes on under a policy that denies it", c.RemoteAddr().Network(), c.RemoteAddr())
		}
	}
}

// An answer on a connection to a Service arrives after a policy change that still allows it,
// although the pod itself is silent.
func TestAnswerOfServiceAfterChange(t *testing.T) {
	l := newServiceLab(t)
	var ln net.Listener
	l.must(l.pods["b"].Do(func() (err error) { ln, err = net.Listen("tcp", "[::]:8081"); return err }))
	defer ln.Close()
	l.load("flush ruleset")
	l.load(fmt.Sprintf(rules, "ip", service4, "10.1.0.12:8081", outsideAddr4+":8080", nodeAddr4+":8080", nodeAddr4, "10.1.0.12"))
	l.load(fmt.Sprintf(rules, "ip6", service6, "[fd01::c]:8081", "["+outsideAddr6+"]:8080", "["+nodeAddr6+"]:8080", nodeAddr6, "fd01::c"))
	for _, f := range families {
		l.apply(isolate("a", model.Egress, accept(pods("b"))))
		var c net.Conn
		l.must(l.pods["a"].Do(func() (err error) { c, err = net.Dial("tcp", net.JoinHostPort(f.service, "80")); return err }))
		defer c.Close()
		peer, err := ln.Accept()
		l.must(err)
		defer peer.Close()
		l.apply(isolate("a", model.Egress, accept(pods("b")), accept(block("10.7.0.0/16"))))
		_, err = peer.Write([]byte("hello"))
		l.must(err)
		c.SetReadDeadline(time.Now().Add(patience))
		_, err = io.ReadFull(c, make([]byte, 5))
		l.must(err)
	}
}

// renew creates a new backend over the objects of the old one.
func (l *lab) renew() {
	l.t.Helper()
	l.must(l.backend.Close())
	l.start()
	l.state = nil
	for name, ips := range map[string]byte{"a": 11, "b": 12} {
		l.must(l.add(name, ips))
	}
}

// A flow whose backend changes is decided again.
func TestAnotherBackend(t *testing.T) {
	l := newServiceLab(t)
	a := l.pods["a"]
	l.apply(isolate("a", model.Egress, accept(pods("b"))))
	for _, f := range families {
		var c net.Conn
		l.must(a.Do(func() (err error) { c, err = net.Dial("udp", net.JoinHostPort(f.service, "80")); return err }))
		defer c.Close()
		l.must(traffic.Exchange(c, patience))
		l.load(noServices)
		l.load(fmt.Sprintf(rules, "ip", service4, outsideAddr4+":8080", outsideAddr4+":8080", nodeAddr4+":8080", nodeAddr4, "10.1.0.12"))
		l.load(fmt.Sprintf(rules, "ip6", service6, "["+outsideAddr6+"]:8080", "["+outsideAddr6+"]:8080", "["+nodeAddr6+"]:8080", nodeAddr6, "fd01::c"))
		l.forget()
		if err := traffic.Exchange(c, silence); err == nil {
			t.Errorf("%s: a flow goes to a backend that policy denies", f.service)
		}
		l.load(noServices)
		l.services()
		l.forget()
		l.must(traffic.Exchange(c, patience))
	}
}

// forget empties the connection tracking of the node.
func (l *lab) forget() {
	l.t.Helper()
	l.must(l.node.Do(func() error { return forgetConnections() }))
}

// A host cannot reach a pod by forging the address of a Service to which the pod was denied.
// Packets with marks for other ends are dropped and counted.
func TestNothingOpensBeforeTheVerdict(t *testing.T) {
	l := newServiceLab(t)
	a := l.pods["a"]
	l.apply(isolate("a", model.Egress, accept(pods("b"))), isolate("a", model.Ingress))
	l.denied(a, "udp", service4, 81)
	l.must(l.outside.Do(func() error { return addresses("eth0", service4+"/32") }))
	l.load(noServices)
	var pc net.PacketConn
	l.must(a.Do(func() (err error) { pc, err = net.ListenPacket("udp4", "10.1.0.11:4000"); return err }))
	defer pc.Close()
	to := &net.UDPAddr{IP: net.ParseIP(service4), Port: 81}
	if _, err := pc.WriteTo([]byte("ask"), to); err != nil {
		t.Fatal(err)
	}
	l.must(l.outside.Do(func() error {
		c, err := net.DialUDP("udp4", to, &net.UDPAddr{IP: net.IP{10, 1, 0, 11}, Port: 4000})
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("answer"))
		return err
	}))
	if hears(pc) {
		t.Error("an answer passes to a question that was denied")
	}
	l.services()
	l.apply()
	l.allowed(a, "tcp", service4, 80)
	l.load("table ip spoil {\nchain pre { type filter hook prerouting priority -180; meta mark set 7; }\n}")
	before := l.drops("unmarked")
	l.denied(a, "udp", service4, 80)
	if l.drops("unmarked") == before {
		t.Error("a packet whose mark was rewritten is not counted")
	}
}

func (l *lab) drops(reason string) (n uint64) {
	l.t.Helper()
	l.must(l.node.Do(func() error {
		c, err := l.backend.Counters(context.Background())
		n = c.Drops[reason]
		return err
	}))
	return n
}

func hears(pc net.PacketConn) bool {
	pc.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	_, _, err := pc.ReadFrom(make([]byte, 100))
	return err == nil
}

// forgetConnections deletes all connection tracking entries of the thread's namespace.
func forgetConnections() error {
	return netlink.ConntrackTableFlush(netlink.ConntrackTable)
}
