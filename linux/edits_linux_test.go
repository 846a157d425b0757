// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/fastpath"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// conversation is an open connection, of which a test holds both ends.
type conversation struct{ client, server net.Conn }

// converse opens a TCP connection from a namespace to port 80 of a pod.
func (l *lab) converse(client, server *netns.NS, to string) conversation {
	l.t.Helper()
	var ln net.Listener
	l.must(server.Do(func() (err error) { ln, err = net.Listen("tcp", net.JoinHostPort(to, "80")); return err }))
	defer ln.Close()
	var c conversation
	l.must(client.Do(func() (err error) {
		c.client, err = net.DialTimeout("tcp", net.JoinHostPort(to, "80"), patience)
		return err
	}))
	l.t.Cleanup(func() { c.client.Close() })
	var err error
	c.server, err = ln.Accept()
	l.must(err)
	l.t.Cleanup(func() { c.server.Close() })
	return c
}

// says reports whether one end gets what the other one writes.
func says(from, to net.Conn, word string) error {
	if _, err := from.Write([]byte(word)); err != nil {
		return err
	}
	to.SetReadDeadline(time.Now().Add(patience))
	got := make([]byte, len(word))
	if _, err := io.ReadFull(to, got); err != nil {
		return err
	}
	if string(got) != word {
		return fmt.Errorf("got %q, want %q", got, word)
	}
	return nil
}

// speakFirst edits the port rules of a client and its server, in parts that do not concern their connection. After each edit the
// server writes first, so that its packet makes the programs decide the flow again.
func speakFirst(t *testing.T, apply func(...*model.Policy), open func() []conversation) {
	t.Helper()
	ports := func(d model.Direction, more ...model.PortMatch) *model.Policy {
		pod, peer := "server", "client"
		if d == model.Egress {
			pod, peer = peer, pod
		}
		return isolate(pod, d, accept(pods(peer), append(more, tcp(80))...))
	}
	// Nothing but the open flow lets the answers pass.
	closed := []*model.Policy{isolate("server", model.Egress), isolate("client", model.Ingress)}
	apply(append(closed, ports(model.Ingress), ports(model.Egress))...)
	all := open()
	for i, edited := range [][2][]model.PortMatch{
		{{tcp(81)}, nil}, {nil, nil}, {nil, {tcp(81)}}, {nil, nil}, {{udp(80)}, {udp(80)}},
	} {
		apply(append(closed, ports(model.Ingress, edited[0]...), ports(model.Egress, edited[1]...))...)
		for _, c := range all {
			if err := errors.Join(says(c.server, c.client, "question"), says(c.client, c.server, "answer")); err != nil {
				t.Errorf("edit %d, %s: the server writes first: %v", i, c.server.LocalAddr(), err)
			}
		}
	}
}

// A server may write first after its policy, or that of the client, was edited: on one node.
func TestServerWritesFirst(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	client, server := l.pod("client", 11), l.pod("server", 12)
	speakFirst(t, func(all ...*model.Policy) { l.apply(all...) }, func() []conversation {
		return []conversation{l.converse(client, server, "10.1.0.12"), l.converse(client, server, "fd01::c")}
	})
}

// The same holds between two nodes.
func TestServerWritesFirstBetweenNodes(t *testing.T) {
	t.Parallel()
	for _, forwarding := range []fastpath.Forwarding{fastpath.Direct, fastpath.Stack} {
		t.Run(string(forwarding), func(t *testing.T) {
			n := newNodes(t, func(c *linux.Config) { c.Fabric.Mode, c.Forwarding = fabric.Routes, forwarding })
			client, server := n[0].pod("client", 11), n[1].pod("server", 139)
			speakFirst(t, func(all ...*model.Policy) { n.apply(all...) }, func() []conversation {
				return []conversation{n[0].converse(client, server, "10.1.0.139"), n[0].converse(client, server, "fd01::8b")}
			})
		})
	}
}

// A flow that policy allowed before a restart of the agent, and denies after it, is refused: also after another restart.
func TestRestartBetweenGrantAndDenial(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a, b := l.pod("a", 11), l.pod("b", 12)
	l.echo(b, 80)
	restart := func() {
		l.must(l.backend.Close())
		l.start()
		l.state = nil
		l.must(l.add("a", 11))
		l.must(l.add("b", 12))
	}
	granted := isolate("b", model.Ingress, accept(pods("a"), tcp(80), udp(80)))
	for round := range 3 { // epochs of a new agent must not begin where those of an earlier one did
		for range round {
			restart()
		}
		l.apply(granted)
		var flows []net.Conn
		for _, to := range []string{"10.1.0.12", "fd01::c"} {
			for _, network := range []string{"tcp", "udp"} {
				l.must(a.Do(func() error {
					c, err := net.Dial(network, net.JoinHostPort(to, "80"))
					flows = append(flows, c)
					return err
				}))
			}
		}
		for _, c := range flows {
			defer c.Close()
			l.must(traffic.Exchange(c, patience))
		}
		restart()
		l.apply(isolate("b", model.Ingress))
		restart()
		for _, c := range flows {
			if traffic.Exchange(c, silence) == nil {
				t.Errorf("round %d: %s %s goes on under a policy that denies it", round, c.RemoteAddr().Network(), c.RemoteAddr())
			}
		}
		l.apply(isolate("b", model.Ingress))
		for _, c := range flows {
			if traffic.Exchange(c, silence) == nil {
				t.Errorf("round %d: %s %s goes on under a policy that denies it, after the next Apply", round, c.RemoteAddr().Network(), c.RemoteAddr())
			}
		}
	}
}

// The node reaches its isolated pods, for probes, from every address of its uplink: also if the address of the Node is not the
// first one.
func TestProbesFromAllAddressesOfTheNode(t *testing.T) {
	t.Parallel()
	l := newNode(t)
	l.outside = l.namespace("outside")
	l.must(l.cable(l.outside))
	l.must(l.node.Do(func() error {
		return addresses("eth0", "192.168.9.50/24", nodeAddr4+"/24", "fd99::50/64", nodeAddr6+"/64")
	}))
	l.must(l.outside.Do(func() error {
		return errors.Join(addresses("eth0", outsideAddr4+"/24", outsideAddr6+"/64"), route("10.1.0.0/16", nodeAddr4), route("fd01::/64", nodeAddr6))
	}))
	l.start()
	t.Cleanup(func() { l.backend.Close() })
	b := l.pod("b", 12)
	l.echo(b, 80)
	l.apply(isolate("b", model.Ingress), isolate("b", model.Egress))
	for to, sources := range map[string][]string{"10.1.0.12": {"", "192.168.9.50", nodeAddr4}, "fd01::c": {"", "fd99::50", nodeAddr6}} {
		for _, from := range sources {
			err := l.node.Do(func() error {
				d := net.Dialer{Timeout: patience}
				if from != "" {
					d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))
				}
				c, err := d.DialContext(context.Background(), "tcp", net.JoinHostPort(to, "80"))
				if err != nil {
					return err
				}
				defer c.Close()
				return traffic.Exchange(c, patience)
			})
			if err != nil {
				t.Errorf("the node to %s, from %q: %v", to, from, err)
			}
		}
		l.denied(l.outside, "tcp", to, 80)
	}
}
