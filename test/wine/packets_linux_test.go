// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// inside is a pod with a network namespace.
type inside struct {
	Pod
	ns      *netns.NS
	address netip.Addr   // the first
	all     []netip.Addr // of both families
}

// newInside makes a pod, attaches it by CNI ADD and serves an echo at its ports.
func newInside(t *testing.T, m *Machine, name string) *inside {
	t.Helper()
	return newResolving(t, m, name, nil)
}

// newResolving is newInside, with DNS settings.
func newResolving(t *testing.T, m *Machine, name string, dns *DNS) *inside {
	t.Helper()
	ns := netns.ForTest(t)
	id, err := m.Control("/namespace", url.Values{"netns": {ns.Path()}})
	if err != nil {
		t.Fatal(err)
	}
	p := &inside{Pod: Pod{Namespace: "shop", Name: name, Container: "sandbox-" + name, NetNS: id, DNS: dns}, ns: ns}
	result, err := m.Add(context.Background(), p.Pod)
	counted(t, "ADD", err)
	for _, ip := range result.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		p.all = append(p.all, a.Unmap())
	}
	p.address = p.all[0]
	for _, port := range []uint16{80, 81} {
		if err := traffic.ServersFor(t).Echo(ns, netip.AddrPortFrom(p.address, port), model.TCP, model.UDP); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// reply is the timeout for an answer; denied flows always reach it.
const reply = 400 * time.Millisecond

// reach opens a flow to an echo server, and returns the connection after the first echo.
func reach(ns *netns.NS, protocol model.Protocol, from netip.Addr, to netip.AddrPort) (net.Conn, error) {
	c, err := traffic.Flow{NS: ns, From: from, To: to, Protocol: protocol}.Dial(context.Background(), reply)
	if err != nil {
		return nil, err
	}
	if err := traffic.Exchange(c, reply); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// The indexes of interfaces. Wine takes an interface for an earlier one of the same name, so one that is made again has
// its index again.
const (
	uplinkIndex = 9001
	routesIndex = 9002
)

// outside is another node, with addresses that policies name.
func outside(t *testing.T, m *Machine, addresses ...string) *netns.NS {
	t.Helper()
	ns := netns.ForTest(t)
	if err := netns.Connect(netns.End{NS: m.NS, Name: "uplink", Index: uplinkIndex}, netns.End{NS: ns, Name: "uplink"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.NS.Do(func() error { return netns.Remove("uplink") }) })
	node, world := netip.MustParseAddr("192.0.2.13"), netip.MustParseAddr("192.0.2.14")
	all := []netip.Prefix{netip.PrefixFrom(world, 24)}
	for _, a := range addresses {
		all = append(all, netip.MustParsePrefix(a+"/32"))
	}
	if err := m.NS.Do(func() error {
		if err := netns.StopForwarding(); err != nil { // the agent turns it on
			return err
		}
		if err := netns.AddAddresses("uplink", netip.PrefixFrom(node, 24)); err != nil {
			return err
		}
		for _, p := range all[1:] {
			if err := netns.Route(p, world); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := ns.Do(func() error {
		if err := netns.AddAddresses("uplink", all...); err != nil {
			return err
		}
		return netns.Route(netip.MustParsePrefix("10.244.3.0/24"), node)
	}); err != nil {
		t.Fatal(err)
	}
	return ns
}

// TestPackets sends real packets through the ACLs of isthmus-agent.exe: between pods of the node, from the node,
// and from another node.
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

	// No policy isolates a pod.
	passes(t, m, client.ns, model.TCP, netip.Addr{}, at(80), true)
	passes(t, m, db.ns, model.UDP, netip.Addr{}, at(81), true)
	passes(t, m, other, model.TCP, far, at(80), true)
	passes(t, m, web.ns, model.TCP, netip.Addr{}, netip.AddrPortFrom(db.address, 80), true)

	// The port that a range and a pod may reach.
	dir.write(t, "policy", policy("web", "10.1.0.0/16", 80)+"  - {from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 80}]}\n")
	decided(t, m, web.Pod, flow{"In", "10.1.0.9", tcp, 80, allow}, flow{"In", client.address.String(), tcp, 80, allow}, flow{"In", db.address.String(), tcp, 80, block})
	stream := passes(t, m, other, model.TCP, near, at(80), true)
	passes(t, m, other, model.TCP, near, at(81), false)
	passes(t, m, other, model.UDP, near, at(80), false)
	passes(t, m, other, model.TCP, far, at(80), false)
	passes(t, m, client.ns, model.TCP, netip.Addr{}, at(80), true)
	passes(t, m, client.ns, model.TCP, netip.Addr{}, at(81), false)
	passes(t, m, db.ns, model.TCP, netip.Addr{}, at(80), false)
	passes(t, m, m.NS, model.TCP, netip.Addr{}, at(81), true) // the node itself
	passes(t, m, web.ns, model.UDP, netip.Addr{}, netip.AddrPortFrom(db.address, 80), true)

	// Windows explains what it has dropped.
	const because = "isolated for ingress by NetworkPolicy shop/web, no rule accepts"
	explained(t, m, func() {}, "deny  shop/web ingress: 10.1.0.9 -> "+web.address.String()+" TCP/81: "+because, "10.1.0.9 -> "+web.address.String()+" UDP/80: "+because,
		db.address.String()+" (shop/db) -> "+web.address.String()+" TCP/80: "+because)

	// A policy change applies to the open connection.
	dir.write(t, "policy", policy("web", "10.2.0.0/16", 80))
	decided(t, m, web.Pod, flow{"In", "10.2.0.9", tcp, 80, allow}, flow{"In", "10.1.0.9", tcp, 80, block})
	if err := traffic.Exchange(stream, reply); err == nil {
		t.Error("a connection that the policy does not allow any more goes on")
	}
	passes(t, m, other, model.TCP, far, at(80), true)

	// The data path needs no agent.
	if err := m.KillAgent(); err != nil {
		t.Fatal(err)
	}
	passes(t, m, other, model.TCP, far, at(80), true)
	passes(t, m, other, model.TCP, near, at(80), false)
	if err := m.StartAgent("win1", string(dir)); err != nil {
		t.Fatal(err)
	}
	explained(t, m, func() { passes(t, m, other, model.TCP, near, at(81), false) }, "10.1.0.9 -> "+web.address.String()+" TCP/81: ") // by a session in place of that of the killed agent
	for _, p := range []*inside{web, client, db} {
		counted(t, "DEL", m.Delete(context.Background(), p.Pod))
	}
	passes(t, m, other, model.TCP, far, at(80), false)
	countPackets(t, m)
}

// countPackets adds the packets of the switch to those of all tests.
func countPackets(t *testing.T, m *Machine) {
	t.Helper()
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

// passes opens a connection, and compares the result with the expected one. It returns the connection, if there
// is one, which the test closes.
func passes(t *testing.T, m *Machine, ns *netns.NS, protocol model.Protocol, from netip.Addr, to netip.AddrPort, want bool) net.Conn {
	t.Helper()
	c, err := reach(ns, protocol, from, to)
	for deadline := time.Now().Add(patience / 3); want && err != nil && time.Now().Before(deadline); {
		c, err = reach(ns, protocol, from, to) // the machine may be busy
	}
	shared.mu.Lock()
	shared.connections++
	shared.mu.Unlock()
	if (err == nil) != want {
		trace, _ := m.Control("/trace", nil)
		lines := strings.Split(strings.TrimSpace(trace), "\n")
		t.Fatalf("%s %s -> %s: want %t, got %v\n%s", protocol, from, to, want, err, strings.Join(lines[max(0, len(lines)-10):], "\n"))
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
