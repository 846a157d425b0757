// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// inside is a pod that is a network namespace too.
type inside struct {
	Pod
	ns      *netns.NS
	address netip.Addr
}

// newInside makes a pod, attaches it by CNI ADD and serves an echo at its ports.
func newInside(t *testing.T, m *Machine, name string) *inside {
	t.Helper()
	ns := namespace(t)
	id, err := m.Control("/namespace", url.Values{"netns": {ns.Path()}})
	if err != nil {
		t.Fatal(err)
	}
	p := &inside{Pod: Pod{Namespace: "shop", Name: name, Container: "sandbox-" + name, NetNS: id}, ns: ns}
	result, err := m.Add(context.Background(), p.Pod)
	counted(t, "ADD", err)
	p.address, _ = netip.AddrFromSlice(result.IPs[0].Address.IP)
	p.address = p.address.Unmap()
	for _, port := range []uint16{80, 81} {
		echo(t, ns, netip.AddrPortFrom(p.address, port))
	}
	return p
}

func namespace(t *testing.T) *netns.NS {
	t.Helper()
	dir, err := os.MkdirTemp("", "isthmus-ns")
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.New(filepath.Join(dir, "ns"))
	if err != nil {
		t.Fatal(errors.Join(err, os.RemoveAll(dir)))
	}
	t.Cleanup(func() {
		if err := errors.Join(ns.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return ns
}

// echo answers TCP and UDP at an address.
func echo(t *testing.T, ns *netns.NS, at netip.AddrPort) {
	t.Helper()
	err := ns.Do(func() error {
		l, err := net.Listen("tcp", at.String())
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() { defer c.Close(); io.Copy(c, c) }()
			}
		}()
		u, err := net.ListenPacket("udp", at.String())
		if err != nil {
			return err
		}
		t.Cleanup(func() { u.Close() })
		go func() {
			b := make([]byte, 64)
			for {
				n, from, err := u.ReadFrom(b)
				if err != nil {
					return
				}
				u.WriteTo(b[:n], from)
			}
		}()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// reply is how long an answer may take; what is denied is never answered.
const reply = 400 * time.Millisecond

// reach connects, says something and waits for the echo.
func reach(ns *netns.NS, network string, from netip.Addr, to netip.AddrPort) (net.Conn, error) {
	var c net.Conn
	err := ns.Do(func() error {
		d := net.Dialer{Timeout: reply}
		if from.IsValid() {
			d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
			if network == "udp" {
				d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
			}
		}
		var err error
		c, err = d.Dial(network, to.String())
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := say(c); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// say wants its own words back.
func say(c net.Conn) error {
	const words = "hello"
	c.SetDeadline(time.Now().Add(reply))
	if _, err := c.Write([]byte(words)); err != nil {
		return err
	}
	b := make([]byte, len(words))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != words {
		return fmt.Errorf("got %q: %w", b, err)
	}
	return nil
}

// outside is another node, with addresses that policies name.
func outside(t *testing.T, m *Machine, addresses ...string) *netns.NS {
	t.Helper()
	ns := namespace(t)
	if err := m.NS.Do(func() error {
		l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "uplink"}, PeerName: "uplink", PeerNamespace: netlink.NsFd(fd(t, ns))}
		if err := netlink.LinkAdd(l); err != nil {
			return err
		}
		t.Cleanup(func() { _ = m.NS.Do(func() error { return netlink.LinkDel(l) }) })
		if err := configure("192.0.2.13/24"); err != nil {
			return err
		}
		for _, a := range addresses {
			if err := route(a+"/32", "192.0.2.14"); err != nil {
				return err
			}
		}
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
	}); err != nil {
		t.Fatal(err)
	}
	if err := ns.Do(func() error {
		all := []string{"192.0.2.14/24"}
		for _, a := range addresses {
			all = append(all, a+"/32")
		}
		if err := configure(all...); err != nil {
			return err
		}
		return route("10.244.3.0/24", "192.0.2.13")
	}); err != nil {
		t.Fatal(err)
	}
	return ns
}

func fd(t *testing.T, ns *netns.NS) int {
	t.Helper()
	f, err := os.Open(ns.Path())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return int(f.Fd())
}

func configure(addresses ...string) error {
	link, err := netlink.LinkByName("uplink")
	if err != nil {
		return err
	}
	for _, a := range addresses {
		parsed, err := netlink.ParseAddr(a)
		if err == nil {
			err = netlink.AddrAdd(link, parsed)
		}
		if err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(link)
}

func route(to, via string) error {
	_, n, err := net.ParseCIDR(to)
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{Dst: n, Gw: net.ParseIP(via)})
}

// TestPackets sends real packets through what isthmus-agent.exe has programmed:
// between pods of the node, from the node, and from another one.
func TestPackets(t *testing.T) {
	m := machine(t)
	logs(t, m)
	if err := m.StartEmulator(hns.Server2022); err != nil {
		t.Fatal(err)
	}
	dir := newManifests(t, "web", "client", "db")
	if err := m.StartAgent("win1", string(dir)); err != nil {
		t.Fatal(err)
	}
	other := outside(t, m, "10.1.0.9", "10.2.0.9")
	web, client, db := newInside(t, m, "web"), newInside(t, m, "client"), newInside(t, m, "db")
	dir.writePods(t, web, client, db)
	near, far := netip.MustParseAddr("10.1.0.9"), netip.MustParseAddr("10.2.0.9")
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(web.address, port) }

	// Nothing isolates anybody.
	passes(t, m, client.ns, "tcp", netip.Addr{}, at(80), true)
	passes(t, m, db.ns, "udp", netip.Addr{}, at(81), true)
	passes(t, m, other, "tcp", far, at(80), true)
	passes(t, m, web.ns, "tcp", netip.Addr{}, netip.AddrPortFrom(db.address, 80), true)

	// The port that a range and a pod may reach.
	dir.write(t, "policy", policy("web", "10.1.0.0/16", 80)+"  - {from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 80}]}\n")
	decided(t, m, web.Pod, flow{"In", "10.1.0.9", tcp, 80, allow}, flow{"In", client.address.String(), tcp, 80, allow}, flow{"In", db.address.String(), tcp, 80, block})
	stream := passes(t, m, other, "tcp", near, at(80), true)
	passes(t, m, other, "tcp", near, at(81), false)
	passes(t, m, other, "udp", near, at(80), false)
	passes(t, m, other, "tcp", far, at(80), false)
	passes(t, m, client.ns, "tcp", netip.Addr{}, at(80), true)
	passes(t, m, client.ns, "tcp", netip.Addr{}, at(81), false)
	passes(t, m, db.ns, "tcp", netip.Addr{}, at(80), false)
	passes(t, m, m.NS, "tcp", netip.Addr{}, at(81), true) // the node itself
	passes(t, m, web.ns, "udp", netip.Addr{}, netip.AddrPortFrom(db.address, 80), true)

	// A change meets the live connection.
	dir.write(t, "policy", policy("web", "10.2.0.0/16", 80))
	decided(t, m, web.Pod, flow{"In", "10.2.0.9", tcp, 80, allow}, flow{"In", "10.1.0.9", tcp, 80, block})
	if err := say(stream); err == nil {
		t.Error("a connection that the policy does not allow any more goes on")
	}
	passes(t, m, other, "tcp", far, at(80), true)

	// The data path needs no agent.
	if err := m.KillAgent(); err != nil {
		t.Fatal(err)
	}
	passes(t, m, other, "tcp", far, at(80), true)
	passes(t, m, other, "tcp", near, at(80), false)
	if err := m.StartAgent("win1", string(dir)); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*inside{web, client, db} {
		counted(t, "DEL", m.Delete(context.Background(), p.Pod))
	}
	passes(t, m, other, "tcp", far, at(80), false)
	count, err := m.Control("/packets", nil)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(count)
	if err != nil || n == 0 {
		t.Errorf("the switch has seen %q packets", count)
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.packets += n
}

// passes compares what becomes of a connection with what should; it returns the
// connection, if there is one, which the test closes.
func passes(t *testing.T, m *Machine, ns *netns.NS, network string, from netip.Addr, to netip.AddrPort, want bool) net.Conn {
	t.Helper()
	c, err := reach(ns, network, from, to)
	for deadline := time.Now().Add(patience / 3); want && err != nil && time.Now().Before(deadline); {
		c, err = reach(ns, network, from, to) // the machine may be busy
	}
	shared.mu.Lock()
	shared.connections++
	shared.mu.Unlock()
	if (err == nil) != want {
		trace, _ := m.Control("/trace", nil)
		lines := strings.Split(strings.TrimSpace(trace), "\n")
		t.Fatalf("%s %s -> %s: want %t, got %v\n%s", network, from, to, want, err, strings.Join(lines[max(0, len(lines)-10):], "\n"))
	}
	if c != nil {
		t.Cleanup(func() { c.Close() })
	}
	return c
}

// writePods publishes the addresses of pods, as the kubelet does.
func (dir manifests) writePods(t *testing.T, pods ...*inside) {
	t.Helper()
	var b strings.Builder
	for _, p := range pods {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: shop, labels: {app: %s}}\nspec: {nodeName: win1, containers: [{name: c, image: example.com/%s}]}\nstatus: {podIPs: [{ip: %s}]}\n", p.Name, p.Name, p.Name, p.address)
	}
	dir.write(t, "pods", b.String())
}
