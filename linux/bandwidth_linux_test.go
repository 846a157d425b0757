// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// runtimeBurst is the burst that container runtimes request for the bandwidth annotations of a
// pod.
const runtimeBurst = 1<<32 - 1

// senderOf returns the interface whose qdisc limits what a pod sends.
func senderOf(pod string) string {
	return strings.Replace(link.HostName(model.MakeEndpointID(pod, "eth0")), "ist", "isq", 1)
}

// drain listens at an address, and reads what arrives there by one TCP connection or by
// datagrams. arrived returns how many bytes have come so far.
func (l *lab) drain(ns *netns.NS, network, at string) (arrived func() uint64, stop func()) {
	l.t.Helper()
	l.must(ns.Do(func() error {
		if network == "udp" {
			var count atomic.Uint64
			c, err := net.ListenPacket(network, at)
			if err != nil {
				return err
			}
			arrived, stop = count.Load, func() { c.Close() }
			go func() {
				for buf := make([]byte, 1<<16); ; {
					n, _, err := c.ReadFrom(buf)
					if err != nil {
						return
					}
					count.Add(uint64(n))
				}
			}()
			return nil
		}
		ln, err := net.Listen(network, at)
		if err != nil {
			return err
		}
		accepted := make(chan *net.TCPConn, 1)
		go func() {
			defer close(accepted)
			c, err := ln.Accept()
			ln.Close() // the next listener may start before this sender has ended
			if err == nil {
				accepted <- c.(*net.TCPConn)
				io.Copy(io.Discard, c)
			}
		}()
		var c *net.TCPConn
		arrived = func() uint64 {
			if c == nil {
				c = <-accepted
			}
			n, err := traffic.Arrived(c)
			l.must(err)
			return n
		}
		stop = func() {
			if c != nil {
				c.Close()
			}
		}
		return nil
	}))
	return arrived, stop
}

// flood sends as much as possible. It returns the bits per second that arrived after the first
// burst.
func (l *lab) flood(from, to *netns.NS, network, address string) float64 {
	l.t.Helper()
	const datagrams = 20e6 // bits per second: a slow machine spends all its time on more
	const first, length = 400 * time.Millisecond, 2 * time.Second
	at := net.JoinHostPort(address, "7")
	arrived, stop := l.drain(to, network, at)
	defer stop()
	var c net.Conn
	l.must(from.Do(func() (err error) {
		c, err = (&net.Dialer{Timeout: patience}).Dial(network, at)
		return err
	}))
	defer c.Close()
	began := time.Now()
	go func() {
		data := make([]byte, 1200)
		if network == "tcp" {
			data = make([]byte, 1<<16)
		}
		for sent := 0.0; ; sent += 8 * float64(len(data)) {
			if _, err := c.Write(data); errors.Is(err, net.ErrClosed) || network == "tcp" && err != nil {
				return
			}
			for network == "udp" && sent > datagrams*time.Since(began).Seconds() {
				time.Sleep(time.Millisecond)
			}
		}
	}()
	time.Sleep(first)
	before, start := arrived(), time.Now()
	time.Sleep(length)
	return float64(8*(arrived()-before)) / time.Since(start).Seconds()
}

// rated expects a rate of arriving bytes. Headers, a few percent, are not counted. A busy
// machine may be slower, so rated tries again.
func (l *lab) rated(want float64, from, to *netns.NS, network, address string) {
	l.t.Helper()
	var got float64
	for range 8 {
		got = l.flood(from, to, network, address)
		if got > 1.1*want {
			break
		}
		if got > 0.85*want {
			l.t.Logf("%s to %s: %.2f of the limit", network, address, got/want)
			return
		}
	}
	l.t.Errorf("%s to %s: %.2f Mbit/s arrive, want %.2f", network, address, got/1e6, want/1e6)
}

// TestBandwidth floods a limited pod and lets it flood, to and from another pod of the node,
// the node, and a host beyond. The agent restarts in between.
func TestBandwidth(t *testing.T) {
	const down, up = 8e6, 4e6
	l := newLab(t)
	l.limits = map[string]model.Bandwidth{"b": {Ingress: model.Limit{Rate: down, Burst: runtimeBurst}, Egress: model.Limit{Rate: up, Burst: runtimeBurst}}}
	a, b := l.pod("a", 11), l.pod("b", 12)
	l.apply()
	all := func() {
		for _, peer := range []struct {
			ns     *netns.NS
			v4, v6 string
		}{{a, "10.1.0.11", "fd01::b"}, {l.node, nodeAddr4, nodeAddr6}, {l.outside, outsideAddr4, outsideAddr6}} {
			l.rated(down, peer.ns, b, "tcp", "10.1.0.12")
			l.rated(down, peer.ns, b, "udp", "fd01::c")
			l.rated(up, b, peer.ns, "tcp", peer.v6)
			l.rated(up, b, peer.ns, "udp", peer.v4)
		}
	}
	all()
	// A new agent, after another process removed everything.
	l.must(l.backend.Close())
	l.must(l.node.Do(func() error {
		sender, err := netlink.LinkByName(senderOf("b"))
		if err != nil {
			return err
		}
		host, err := netlink.LinkByName(link.HostName("b:eth0"))
		if err != nil {
			return err
		}
		root := &netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: host.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}}
		return errors.Join(netlink.LinkDel(sender), netlink.QdiscDel(root))
	}))
	l.start()
	l.must(l.add("a", 11))
	l.must(l.add("b", 12))
	l.whole("b")
	l.apply()
	l.rated(down, a, b, "tcp", "10.1.0.12")
	l.rated(up, b, a, "tcp", "10.1.0.11")
	// Programs on tcx links instead of clsact.
	for more := true; more; {
		l.must(l.node.Do(func() (err error) { more, err = l.backend.Idle(context.Background()); return err }))
	}
	l.whole("b")
	l.rated(down, a, b, "tcp", "fd01::c")
	l.rated(up, b, a, "tcp", "fd01::b")
	l.delete("b")
	l.must(l.node.Do(func() error {
		if _, err := netlink.LinkByName(senderOf("b")); err == nil {
			t.Error("DEL left the interface of what the pod sends")
		}
		return nil
	}))
}

// whole expects no problems of a pod's attachment.
func (l *lab) whole(pod string) {
	l.t.Helper()
	if problems := l.problemsOf(pod); len(problems) > 0 {
		l.t.Errorf("pod %s: %v", pod, problems)
	}
}

func (l *lab) problemsOf(pod string) (problems []string) {
	l.t.Helper()
	l.must(l.node.Do(func() error {
		all, err := l.backend.Endpoints(context.Background())
		for _, i := range all {
			if i.ID == model.MakeEndpointID(pod, "eth0") {
				problems = i.Problems
			}
		}
		return err
	}))
	return problems
}

// TestBandwidthIsRepaired removes one part after the other. The audit finds each, and
// AddEndpoint repairs it.
func TestBandwidthIsRepaired(t *testing.T) {
	l := newLab(t)
	l.limits = map[string]model.Bandwidth{"b": {Ingress: model.Limit{Rate: 30e6}, Egress: model.Limit{Rate: 5e9}}}
	l.pod("b", 12)
	l.whole("b")
	device := func(name string) netlink.Link {
		d, err := netlink.LinkByName(name)
		l.must(err)
		return d
	}
	host, sender := link.HostName("b:eth0"), senderOf("b")
	bucket := func(name string) error {
		return netlink.QdiscDel(&netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: device(name).Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}})
	}
	for want, spoil := range map[string]func() error{
		host + " is not limited to 30000000 bit/s":     func() error { return bucket(host) },
		sender + " is not limited to 5000000000 bit/s": func() error { return bucket(sender) },
		"is missing or down":                           func() error { return netlink.LinkSetDown(device(sender)) },
		sender + ", which limits what the pod sends":   func() error { return netlink.LinkDel(device(sender)) },
		"are not redirected to " + sender: func() error {
			return netlink.FilterDel(&netlink.U32{FilterAttrs: netlink.FilterAttrs{LinkIndex: device(host).Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Priority: 2, Protocol: 3}})
		},
	} {
		l.must(l.node.Do(spoil))
		if got := strings.Join(l.problemsOf("b"), "; "); !strings.Contains(got, want) {
			t.Errorf("the audit says %q, want %q", got, want)
		}
		l.must(l.add("b", 12))
		l.whole("b")
	}
	// The next start finds the parts that remain when the veth pair disappears without DEL.
	l.must(l.backend.Close())
	l.must(l.node.Do(func() error { return netlink.LinkDel(device(host)) }))
	l.start()
	l.must(l.node.Do(func() error {
		if _, err := netlink.LinkByName(sender); err == nil {
			t.Error("the interface of a pair that is gone stays")
		}
		return nil
	}))
}

// TestBandwidthOfReusedAddress gives the address of a pod to a limited pod, while
// the flows of the old pod are known as direct.
func TestBandwidthOfReusedAddress(t *testing.T) {
	l := newLab(t)
	l.limits = map[string]model.Bandwidth{"c": {Ingress: model.Limit{Rate: 1e9}, Egress: model.Limit{Rate: 1e9}}}
	a, b := l.pod("a", 11), l.pod("b", 12)
	l.apply()
	fixed := func(ns *netns.NS, from, to string) (c *net.UDPConn) {
		l.must(ns.Do(func() (err error) {
			c, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(from)), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to)))
			return err
		}))
		c.SetDeadline(time.Now().Add(10 * time.Second))
		t.Cleanup(func() { c.Close() })
		return c
	}
	near, far := fixed(a, "10.1.0.11:70", "10.1.0.12:71"), fixed(b, "10.1.0.12:71", "10.1.0.11:70")
	echo := func(pod *net.UDPConn) {
		t.Helper()
		buf := make([]byte, 8)
		_, err := near.Write([]byte("there"))
		l.must(err)
		_, err = pod.Read(buf)
		l.must(err)
		_, err = pod.Write([]byte("back"))
		l.must(err)
		_, err = near.Read(buf)
		l.must(err)
	}
	l.straight(func() { echo(far) }, "a", "b")
	l.delete("b")
	c := l.pod("c", 12)
	l.apply()
	there, back := l.sent("c"), l.transmitted(senderOf("c"))
	far = fixed(c, "10.1.0.12:71", "10.1.0.11:70")
	echo(far)
	echo(far)
	if got := l.sent("c") - there; got < 2 {
		t.Errorf("%d packets to the pod were queued, want 2", got)
	}
	if got := l.transmitted(senderOf("c")) - back; got < 2 {
		t.Errorf("%d packets of the pod were queued, want 2", got)
	}
}
