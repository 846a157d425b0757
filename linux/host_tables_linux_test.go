// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
)

// Flows that policy allows add entries to tables of the kernel, which all pods of a node share: a neighbour for each
// address of the segment, and a tracked connection for each flow. SECURITY.md says so.
func TestFlowsFillTablesOfTheHost(t *testing.T) {
	t.Parallel()
	l := newServiceLab(t)
	l.apply()
	for _, f := range []struct {
		name   string
		family netlink.InetFamily
		first  string
	}{{"IPv4", unix.AF_INET, "192.168.9.100"}, {"IPv6", unix.AF_INET6, "fd99::100"}} {
		const flows = 100
		sentTo := make(map[string]bool)
		for to := netip.MustParseAddr(f.first); len(sentTo) < flows; to = to.Next() {
			l.sends(l.pods["a"], 1, net.JoinHostPort(to.String(), "9"))
			sentTo[to.String()] = true
		}
		var neighbours, tracked int
		l.must(l.node.Do(func() error {
			uplink, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			known, err := link.Whole(func() ([]netlink.Neigh, error) { return netlink.NeighList(uplink.Attrs().Index, int(f.family)) })
			if err != nil {
				return err
			}
			for _, n := range known {
				if sentTo[n.IP.String()] {
					neighbours++
				}
			}
			connections, err := link.Whole(func() ([]*netlink.ConntrackFlow, error) {
				return netlink.ConntrackTableList(netlink.ConntrackTable, f.family)
			})
			for _, c := range connections {
				if sentTo[c.Forward.DstIP.String()] {
					tracked++
				}
			}
			return err
		}))
		if neighbours != flows || tracked != flows {
			t.Errorf("%s: %d flows to as many addresses added %d neighbours and %d tracked connections", f.name, flows, neighbours, tracked)
		}
	}
}

// The kernel keeps fragments of incomplete datagrams up to a limit for the whole node, 4 MiB for each IP version. Policy about what is
// no pod decides after the kernel has put a datagram together, so each pod can fill that limit, and the node loses the fragments
// of others until these expire. SECURITY.md says so. Fragments to a pod are decided before.
func TestFragmentsFillReassembly(t *testing.T) {
	t.Parallel()
	const incomplete = 8000
	l := newServiceLab(t)
	wa, wo, host, up := l.wire(l.pods["a"], "eth0"), l.wire(l.outside, "eth0"), l.hostMAC("a"), l.macIn(l.node, "eth0")
	l.apply(isolate("a", model.Egress))
	for i, f := range families {
		from, port := addressSets[i], uint16(9990+10*i)
		arrives := func(limit time.Duration) bool {
			port++
			heard := l.hearOn(l.node, net.JoinHostPort(f.node, fmt.Sprint(port)))
			for began := time.Now(); ; {
				for _, part := range inFragments(wo.mac, up, from.out, f.node, port, uint32(time.Now().UnixNano()), "whole") {
					wo.send(part)
				}
				if heard() {
					return true
				}
				if time.Since(began) > limit {
					return false
				}
			}
		}
		flood := func(to string) {
			for id := range uint32(incomplete) {
				wa.send(inFragments(wa.mac, host, from.a, to, 9, id, "")[0])
			}
		}
		flood(from.b)
		if !arrives(patience) {
			t.Errorf("%s: a datagram of another host is lost after fragments to a pod, which policy denies", f.node)
		}
		flood(f.node)
		if arrives(silence) {
			t.Errorf("%s: a datagram of another host arrives after %d incomplete ones of a pod", f.node, incomplete)
		}
	}
}
