// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"

	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/test/cluster"
)

// TestWindowsHostFabric checks Windows hosts with bridged networks, which start without routes and do not
// forward. Their agents change that, and repair it when another process reverts it. Only traffic that leaves the
// cluster has the address of the node.
func TestWindowsHostFabric(t *testing.T) {
	c, pods := startCluster(t, fabricManifests, cluster.Config{Linux: 1, Windows: 2})
	for _, p := range pods {
		whoami(t, p.NS, netip.IPv6Unspecified())
	}
	all := func() {
		t.Helper()
		for _, v6 := range []bool{false, true} {
			for _, from := range pods {
				for _, to := range pods {
					if from != to {
						sees(t, from.NS, address(to, v6), address(from, v6), to.Name == "server" && from.Name == "third")
					}
				}
			}
		}
	}
	all()
	win := c.Nodes[1]
	outside, world := c.Outside()
	whoami(t, outside, world[0])
	for _, p := range pods { // without --cluster-cidr; the emulated HNS has the node's IPv4 address only
		sees(t, p.NS, world[0], p.Node.Addresses()[0], false)
	}
	status, err := win.Ctl(t.Context(), "status").Output()
	if want := "4 of 4 in force, forwarding on"; err != nil || !strings.Contains(string(status), "Fabric routes:") || !strings.Contains(string(status), want) {
		t.Errorf("%v\n%s\nwant %q", err, status, want)
	}

	const forwarding = "/proc/sys/net/ipv4/conf/eth0/forwarding"
	to := c.Nodes[2].PodCIDRs[0]
	if err := win.NS.Do(func() error {
		if err := netlink.RouteDel(&netlink.Route{Dst: netipx.PrefixIPNet(to)}); err != nil {
			return fmt.Errorf("remove the route to %s: %w", to, err)
		}
		return os.WriteFile(forwarding, []byte("0"), 0)
	}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		return win.NS.Do(func() error {
			if text, err := os.ReadFile(forwarding); err != nil || string(text) != "1\n" {
				return fmt.Errorf("forwarding is %q, %v", text, err)
			}
			return viaNode(to, c.Nodes[2].Addresses()[0])
		})
	})
	eventually(t, func() error {
		if n := repairs(t, win); n != 2 {
			return fmt.Errorf("isthmus_repairs_total is %d", n)
		}
		return nil
	})
	all()
}

// viaNode returns an error unless a range is routed by a node.
func viaNode(to netip.Prefix, node netip.Addr) error {
	routes, err := link.Whole(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return err
	}
	for _, r := range routes {
		p, _ := netipx.FromStdIPNet(r.Dst)
		if gw, _ := netip.AddrFromSlice(r.Gw); p == to && gw.Unmap() == node {
			return nil
		}
	}
	return fmt.Errorf("no route to %s by %s in %v", to, node, routes)
}
