// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/isthmus-net/isthmus/test/cluster"
)

// TestFabricModes checks both modes, with both families and with IPv6 only. Pods and nodes see each other's own
// addresses, the outside sees addresses of nodes, and packets have the MTU of the mode.
func TestFabricModes(t *testing.T) {
	for _, c := range []struct {
		mode     string
		ipv6Only bool
		mtu      int
	}{
		{"routes", false, 1500},
		{"routes", true, 1500},
		{"vxlan", false, 1450}, // over IPv4
		{"vxlan", true, 1430},
	} {
		t.Run(fmt.Sprintf("%s, IPv6 only %t", c.mode, c.ipv6Only), func(t *testing.T) {
			judgeMode(t, cluster.Config{Linux: 2, IPv6Only: c.ipv6Only, AgentFlags: []string{"--fabric=" + c.mode}}, c.mtu)
		})
	}
}

func judgeMode(t *testing.T, cfg cluster.Config, mtu int) {
	c, pods := startCluster(t, fabricManifests, cfg)
	client, server, third := pods["client"], pods["server"], pods["third"] // on linux1, linux2, linux1
	for _, p := range pods {
		whoami(t, p.NS, netip.IPv6Unspecified())
	}
	for _, n := range c.Nodes {
		whoami(t, n.NS, netip.IPv6Unspecified())
	}
	outside, world := c.Outside()
	for _, a := range world {
		whoami(t, outside, a)
	}
	for i, v6 := range []bool{false, true} {
		if cfg.IPv6Only {
			if i--; i < 0 {
				continue
			}
		}
		at := func(n *cluster.Node) netip.Addr { return n.Addresses()[i] }
		sees(t, client.NS, address(server, v6), address(client, v6), false)
		sees(t, third.NS, address(server, v6), address(third, v6), true)
		sees(t, server.NS, address(client, v6), address(server, v6), false)
		sees(t, c.Nodes[0].NS, address(server, v6), at(c.Nodes[0]), false)
		sees(t, server.NS, at(c.Nodes[0]), address(server, v6), false)
		sees(t, c.Nodes[1].NS, address(third, v6), at(c.Nodes[1]), false)

		to := world[0]
		headers := 28
		if v6 {
			to, headers = world[1], 48
		}
		sees(t, client.NS, to, at(c.Nodes[0]), false)
		sees(t, server.NS, to, at(c.Nodes[1]), false)
		fits(t, client.NS, address(server, v6), mtu-headers, nil)
		fits(t, client.NS, address(server, v6), mtu+1-headers, syscall.EMSGSIZE)
	}
	for _, p := range pods {
		if want := 2; cfg.IPv6Only && len(p.IPs) != 1 || !cfg.IPv6Only && len(p.IPs) != want {
			t.Errorf("pod %s has addresses %v", p.Name, p.IPs)
		}
	}
	for _, n := range c.Nodes {
		s, err := n.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range s.GetProblems() {
			if !strings.HasPrefix(p, "warning: ") {
				t.Errorf("%s has a problem: %s", n.Name, p)
			}
		}
	}
}
