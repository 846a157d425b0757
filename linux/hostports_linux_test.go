// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/hostport"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// hostPort returns a TCP port of the node that leads to port 80 of a pod. address may be empty.
func hostPort(address string, number uint16) model.HostPort {
	h := model.HostPort{Number: number, Protocol: model.TCP, Port: 80}
	if address != "" {
		h.Address = netip.MustParseAddr(address)
	}
	return h
}

// serve greets each client with the name of the server.
func (l *lab) serve(ns *netns.NS, at, name string) io.Closer {
	l.t.Helper()
	servers := traffic.ServersFor(l.t)
	l.must(servers.TCP(ns, netip.MustParseAddrPort(at), func(c net.Conn) { io.WriteString(c, name) }))
	return servers
}

// answer returns the name of the server that answers at an address, "refused", or "no answer".
func (l *lab) answer(from *netns.NS, to string) string {
	l.t.Helper()
	name, err := traffic.Flow{NS: from, To: netip.MustParseAddrPort(to), Protocol: model.TCP}.Read(patience)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case traffic.Silent(err):
		return "no answer"
	case err != nil:
		return err.Error()
	}
	return name
}

// answers compares which servers answer at several addresses.
func (l *lab) answers(from *netns.NS, want map[string]string) {
	l.t.Helper()
	for to, name := range want {
		if got := l.answer(from, to); got != name {
			l.t.Errorf("%s: %s answers, want %s", to, got, name)
		}
	}
}

// takesLoopback returns the sysctl of a pod's interface, and whether the table of host ports
// exists.
func (l *lab) takesLoopback(pod string) (open, table bool) {
	l.t.Helper()
	l.must(l.node.Do(func() error {
		var err error
		open, table, err = takesLoopback(pod)
		return err
	}))
	return open, table
}

// takesLoopback is for callers in the node's namespace.
func takesLoopback(pod string) (open, table bool, err error) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + link.HostName(model.MakeEndpointID(pod, "eth0")) + "/route_localnet")
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return false, false, err
	}
	table, err = hostport.HasTable()
	return string(text) == "1\n", table, err
}

// idleFor calls Idle of the backend for a while.
func (l *lab) idleFor(d time.Duration) {
	l.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		l.must(l.node.Do(func() error { _, err := l.backend.Idle(context.Background()); return err }))
	}
}

func (l *lab) flush() {
	l.t.Helper()
	l.must(l.node.Do(func() error { return exec.Command("nft", "flush", "ruleset").Run() }))
}

// newPortLab sets the loopback interface up, because connections of the node to itself need it.
func newPortLab(t *testing.T, ports map[string][]model.HostPort) *lab {
	l := newLab(t)
	l.ports = ports
	l.must(l.node.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	}))
	return l
}

// TestLoopbackIsOpenOnlyWithTheTable checks every step of a pod's life. Its interface accepts
// loopback addresses only while the table drops what it sends there. Interfaces of other pods
// never accept them.
func TestLoopbackIsOpenOnlyWithTheTable(t *testing.T) {
	l := newPortLab(t, map[string][]model.HostPort{"a": {hostPort("", 8100)}, "b": {hostPort(nodeAddr4, 8101)}, "c": {hostPort("::", 8102)}, "d": nil})
	steps := 0
	look := func(name string) {
		steps++
		for _, pod := range []string{"a", "b", "c", "d"} {
			open, table, err := takesLoopback(pod)
			if err != nil {
				t.Error(err)
			}
			if open && (pod != "a" || !table) {
				t.Errorf("step %q: the interface of pod %s takes loopback addresses, there is a table: %t", name, pod, table)
			}
		}
	}
	l.must(l.backend.Close())
	l.step = look
	l.start()
	for n, name := range []string{"a", "b", "c", "d"} {
		l.pod(name, byte(11+n))
	}
	l.apply()
	look("applied")
	if open, table := l.takesLoopback("a"); !open || !table {
		t.Errorf("the interface of pod a takes loopback addresses: %t, there is a table: %t", open, table)
	}
	l.serve(l.pods["a"], "[::]:80", "a")
	l.answers(l.node, map[string]string{"127.0.0.1:8100": "a"})
	l.delete("b")
	l.delete("c")
	l.delete("a") // the last one: the agent removes the table
	look("deleted")
	if _, table := l.takesLoopback("a"); table {
		t.Error("the table of host ports is left")
	}
	if steps < 20 {
		t.Errorf("only %d steps", steps)
	}
}

// TestFlushedHostPorts flushes the ruleset while the agent runs, and while it does not.
func TestFlushedHostPorts(t *testing.T) {
	l := newPortLab(t, map[string][]model.HostPort{"a": {hostPort("", 8100)}})
	l.pod("a", 11)
	l.serve(l.pods["a"], "[::]:80", "a")
	l.apply()
	l.idleFor(1500 * time.Millisecond)
	before, err := l.backend.Counters(context.Background())
	l.must(err)
	l.flush()
	for began := time.Now(); ; l.idleFor(100 * time.Millisecond) {
		if _, table := l.takesLoopback("a"); table {
			break
		}
		if time.Since(began) > patience {
			t.Fatalf("the table is not back after %s", patience)
		}
	}
	l.answers(l.node, map[string]string{"127.0.0.1:8100": "a"})
	if after, err := l.backend.Counters(context.Background()); err != nil || after.Repairs <= before.Repairs {
		t.Errorf("%d repairs before, %d after it, %v", before.Repairs, after.Repairs, err)
	}
	l.must(l.backend.Close())
	l.flush()
	l.start()
	if open, table := l.takesLoopback("a"); open || table {
		t.Errorf("after a start without the table the interface takes loopback addresses: %t, there is a table: %t", open, table)
	}
	l.must(l.add("a", 11))
	l.apply()
	if open, table := l.takesLoopback("a"); !open || !table {
		t.Errorf("the interface of pod a takes loopback addresses: %t, there is a table: %t", open, table)
	}
}

// TestOwnServicesStay lets processes of the node listen on ports that lead to a pod. The node's
// own connections still reach them, and the later one is reported.
func TestOwnServicesStay(t *testing.T) {
	t.Parallel()
	l := newPortLab(t, map[string][]model.HostPort{"a": {hostPort("", 8100)}})
	resolver := l.serve(l.node, "127.0.0.53:8100", "resolver") // before the pod
	l.pod("a", 11)
	l.serve(l.pods["a"], "[::]:80", "a")
	l.apply()
	node4, node6 := nodeAddr4+":8100", "["+nodeAddr6+"]:8100"
	all := map[string]string{"127.0.0.53:8100": "resolver", "127.0.0.1:8100": "a", node4: "a", node6: "a", "[::1]:8100": "refused"}
	l.answers(l.node, all)
	l.answers(l.outside, map[string]string{node4: "a", node6: "a"})
	if got := l.backend.Faults(); len(got) > 0 {
		t.Errorf("faults %q", got)
	}

	resolver.Close()
	daemon := l.serve(l.node, "0.0.0.0:8100", "daemon") // after the pod
	l.idleFor(1500 * time.Millisecond)
	l.answers(l.node, map[string]string{"127.0.0.53:8100": "daemon", "127.0.0.1:8100": "daemon", node4: "daemon", node6: "a"})
	l.answers(l.outside, map[string]string{node4: "a", node6: "a"})
	want := "host port TCP 8100 of pod default/a: a process of the node also listens on TCP 0.0.0.0:8100"
	if got := l.backend.Faults(); len(got) != 1 || !strings.HasPrefix(got[0], want) {
		t.Errorf("faults %q, want %q", got, want)
	}
	daemon.Close()
	l.idleFor(1500 * time.Millisecond)
	all["127.0.0.53:8100"] = "a"
	l.answers(l.node, all)
	if got := l.backend.Faults(); len(got) > 0 {
		t.Errorf("faults %q", got)
	}
}

// TestHostPortsFromNode changes which of the node's own connections go to pods.
func TestHostPortsFromNode(t *testing.T) {
	l := newPortLab(t, map[string][]model.HostPort{"a": {hostPort("", 8100)}})
	l.pod("a", 11)
	l.serve(l.pods["a"], "[::]:80", "a")
	l.apply()
	node4, node6 := nodeAddr4+":8100", "["+nodeAddr6+"]:8100"
	for _, c := range []struct {
		mode           hostport.FromNode
		loopback, node string
		open           bool
	}{{hostport.FromNodeAll, "a", "a", true}, {hostport.FromNodeLoopback, "a", "refused", true}, {hostport.FromNodeNone, "refused", "refused", false}, {hostport.FromNodeAll, "a", "a", true}} {
		t.Run(string(c.mode), func(t *testing.T) {
			l.t = t
			l.must(l.backend.Close())
			l.change = func(cfg *linux.Config) { cfg.HostPortsFromNode = c.mode }
			l.start()
			l.must(l.add("a", 11))
			l.apply()
			l.answers(l.node, map[string]string{"127.0.0.1:8100": c.loopback, node4: c.node, node6: c.node})
			l.answers(l.outside, map[string]string{node4: "a", node6: "a"})
			l.answers(l.pods["a"], map[string]string{node4: "a", node6: "a"})
			if open, _ := l.takesLoopback("a"); open != c.open {
				t.Errorf("the interface takes loopback addresses: %t, want %t", open, c.open)
			}
		})
	}
}

// TestListening lists sockets of every kind.
func TestListening(t *testing.T) {
	l := newPortLab(t, nil)
	l.must(l.node.Do(func() error {
		listen := func(network, at string) (name string) {
			if strings.HasPrefix(network, "udp") {
				c, err := net.ListenPacket(network, at)
				l.must(err)
				t.Cleanup(func() { c.Close() })
				return "UDP " + c.LocalAddr().String()
			}
			c, err := net.Listen(network, at)
			l.must(err)
			t.Cleanup(func() { c.Close() })
			return "TCP " + c.Addr().String()
		}
		dual := func(name string) string { return strings.Replace(name, "[::]:", "", 1) }
		want := []string{listen("tcp4", "0.0.0.0:0"), listen("tcp4", "127.0.0.1:0"), listen("tcp6", "[::]:0"), listen("tcp6", "["+nodeAddr6+"]:0"), dual(listen("tcp", ":0")),
			listen("udp4", "0.0.0.0:0"), listen("udp4", nodeAddr4+":0"), listen("udp6", "[::]:0"), listen("udp6", "[::1]:0"), dual(listen("udp", ":0"))}
		// Open connections and connected sockets are not listed.
		at := strings.TrimPrefix(want[1], "TCP ")
		connection, err := net.Dial("tcp", at)
		l.must(err)
		defer connection.Close()
		connected, err := net.Dial("udp", nodeAddr4+":9")
		l.must(err)
		defer connected.Close()
		found, err := hostport.Listening()
		l.must(err)
		var got []string
		for _, h := range found {
			got = append(got, fmt.Sprint(h))
		}
		// The list may also contain sockets of the kernel, such as those of tunnels.
		for _, name := range []string{connection.LocalAddr().String(), connected.LocalAddr().String()} {
			if slices.ContainsFunc(got, func(g string) bool { return strings.HasSuffix(g, " "+name) }) {
				t.Errorf("%s is connected and listed in %q", name, got)
			}
		}
		for _, w := range want {
			if !slices.Contains(got, w) {
				t.Errorf("%s is not listed in %q", w, got)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%d sockets are listed, want %d: %q, %q", len(got), len(want), got, want)
		}
		return nil
	}))
}

// A host port takes no connections of a Service, whose NodePort or external address is the same address and port of the
// node: kube-proxy replaces their destination first, whichever table is older.
func TestHostPortOfAService(t *testing.T) {
	t.Parallel()
	l := newPortLab(t, map[string][]model.HostPort{"a": {hostPort("", 30080), hostPort("", 30081)}})
	a, b := l.pod("a", 11), l.pod("b", 12)
	l.apply()
	l.serve(a, "[::]:80", "a")
	l.serve(b, "[::]:80", "b")
	want := map[string]string{nodeAddr4 + ":30080": "b", "[" + nodeAddr6 + "]:30080": "b", nodeAddr4 + ":30081": "a", "[" + nodeAddr6 + "]:30081": "a"}
	const service = `table inet kube-test-nodeport {
		chain to { meta nfproto ipv4 tcp dport 30080 fib daddr type local dnat ip to 10.1.0.12:80; meta nfproto ipv6 tcp dport 30080 fib daddr type local dnat ip6 to [fd01::c]:80; }
		chain pre { type nat hook prerouting priority dstnat; jump to; }
		chain out { type nat hook output priority -100; jump to; }
	}`
	l.load(service)
	l.answers(l.outside, want)
	l.answers(l.node, want)
	l.answers(l.pods["a"], map[string]string{nodeAddr4 + ":30080": "b", "[" + nodeAddr6 + "]:30080": "b"})
	l.load("delete table inet isthmus-hostports")
	l.idleFor(1500 * time.Millisecond) // now it is the younger one
	l.answers(l.outside, want)
	l.answers(l.node, want)
}

// Policy decides about the pod behind a host port: that of a pod that calls a port of its own node, and that of the pod that is called,
// which sees the caller. isthmusctl explain says so.
func TestPolicyBehindHostPorts(t *testing.T) {
	t.Parallel()
	l := newPortLab(t, map[string][]model.HostPort{"a": {hostPort("", 8100)}})
	a, b := l.pod("a", 11), l.pod("b", 12)
	l.echo(a, 80)
	at := []netip.AddrPort{netip.MustParseAddrPort(nodeAddr4 + ":8100"), netip.MustParseAddrPort("[" + nodeAddr6 + "]:8100")}
	node := []model.Rule{accept(block(nodeAddr4 + "/32")), accept(block(nodeAddr6 + "/128"))}
	for _, c := range []struct {
		name     string
		policies []*model.Policy
		from     *netns.NS
		open     bool
	}{
		{"egress to the pod", []*model.Policy{isolate("b", model.Egress, accept(pods("a"), tcp(80)))}, b, true},
		{"egress to the node", []*model.Policy{isolate("b", model.Egress, node...)}, b, false},
		{"egress to the port of the node", []*model.Policy{isolate("b", model.Egress, accept(pods("a"), tcp(8100)))}, b, false},
		{"ingress from the pod", []*model.Policy{isolate("a", model.Ingress, accept(pods("b"), tcp(80)))}, b, true},
		{"ingress from the pod, by another", []*model.Policy{isolate("a", model.Ingress, accept(pods("b"), tcp(80)))}, l.outside, false},
		{"ingress from the node", []*model.Policy{isolate("a", model.Ingress, node...)}, l.outside, false},
		{"ingress of no peer, by the pod itself", []*model.Policy{isolate("a", model.Ingress), isolate("a", model.Egress)}, a, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			l.t = t
			l.apply(c.policies...)
			for _, to := range at {
				if c.open {
					l.allowed(c.from, "tcp", to.Addr().String(), to.Port())
				} else {
					l.denied(c.from, "tcp", to.Addr().String(), to.Port())
				}
			}
		})
	}
}
