// SPDX-License-Identifier: Apache-2.0

package beside_test

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// begin starts the traffic: packets and connections of the client to a server on each node, and packets that policy
// denies. With tunnels of flannel, there are fewer in the other direction, and from the address of flannel.1.
func (m *migration) begin() {
	t := m.t
	t.Helper()
	m.open, m.allowed = nil, nil
	allow := func(from *netns.NS, targets []traffic.Target, packets, connections int) {
		open, err := traffic.Connect(from, targets, connections)
		if err != nil {
			t.Fatal(err)
		}
		m.open = append(m.open, open)
		stream, err := traffic.NewStream(from, targets, packets)
		if err != nil {
			t.Fatal(err)
		}
		m.allowed = append(m.allowed, stream)
	}
	client, other := m.pods["client-linux1"], m.pods["other-linux2"]
	allow(client.NS, m.targets(client.IPs, 7001, "near-linux1", "far-linux2"), 10_000, 200)
	if m.tunnels() {
		back, node := m.pods["client-linux2"], m.cluster.Nodes[0]
		allow(back.NS, m.targets(back.IPs, 7001, "back-linux1"), 1000, 20)
		allow(node.NS, m.targets([]netip.Addr{node.PodCIDRs[0].Addr()}, 7003, "other-linux2"), 1000, 20)
	}
	var err error
	if m.denied, err = traffic.NewStream(other.NS, m.targets(other.IPs, 7002, "near-linux1", "far-linux2"), 1000); err != nil {
		t.Fatal(err)
	}
	for _, s := range m.allowed {
		wait(t, "packets of the stream", func() bool { return s.Received() > 1000 })
	}
}

// targets are the addresses of pods, from one of the sources each.
func (m *migration) targets(sources []netip.Addr, port uint16, pods ...string) (all []traffic.Target) {
	for _, name := range pods {
		for _, ip := range m.pods[name].IPs {
			i := slices.IndexFunc(sources, func(a netip.Addr) bool { return a.Is6() == ip.Is6() })
			all = append(all, traffic.Target{NS: m.pods[name].NS, From: sources[i], To: netip.AddrPortFrom(ip, port)})
		}
	}
	return all
}

// finish ends the traffic and prints what was lost.
func (m *migration) finish(name string) {
	t := m.t
	t.Helper()
	var lost, sent, overflowed uint64
	var broken []error
	var exchanges, resent int
	for _, open := range m.open {
		before := open.Exchanges()
		wait(t, "exchanges of connections", func() bool { return open.Exchanges() > before+400 })
	}
	for _, s := range m.allowed {
		o, err := s.Finish()
		if err != nil {
			t.Fatal(err)
		}
		lost, sent, overflowed = lost+o.Lost()-o.Overflowed, sent+o.Sent, overflowed+o.Overflowed
	}
	denied, err := m.denied.Finish()
	if err != nil {
		t.Fatal(err)
	}
	for _, open := range m.open {
		ends, n, again := open.Finish()
		broken, exchanges, resent = append(broken, ends...), exchanges+n, resent+again
	}
	fmt.Printf("migrate: nodes=%d pods=%d lost=%d reset=%d open=%d (%s, %s: sent=%d overflowed=%d exchanges=%d retransmits=%d denied=%d)\n", len(m.cluster.Nodes), len(m.pods),
		lost, len(broken), denied.Received, m.network.name, name, sent, overflowed, exchanges, resent, denied.Sent)
	if lost != 0 || len(broken) != 0 || denied.Received != 0 || denied.Sent == 0 {
		t.Errorf("%s: lost %d of %d packets, broken connections %v, %d of %d packets passed that policy denies", name, lost, sent, broken[:min(3, len(broken))], denied.Received, denied.Sent)
	}
}
