// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
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
			known, err := netlink.NeighList(uplink.Attrs().Index, int(f.family))
			if err != nil {
				return err
			}
			for _, n := range known {
				if sentTo[n.IP.String()] {
					neighbours++
				}
			}
			connections, err := netlink.ConntrackTableList(netlink.ConntrackTable, f.family)
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
