// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"

	"github.com/isthmus-net/isthmus/test/netns"
)

// fabric is the network between the nodes: a namespace with a bridge for each segment. It is the router between
// them, and also the rest of the world. As a router it has routes to the segments only: packets between pods
// arrive only if agents made routes or tunnels. Its own packets to pods go to the nodes of those pods.
type fabric struct {
	ns       *netns.NS
	segments int
}

// The underlay of node n is .n+10 on its segment, the fabric itself .1.
func underlay(n, segment int) []netip.Prefix { return onSegment(segment, n+10) }

func fabricAddresses(segment int) []netip.Prefix { return onSegment(segment, 1) }

func onSegment(segment, host int) []netip.Prefix {
	return []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(30 + segment), 0, byte(host)}), 24),
		netip.MustParsePrefix(fmt.Sprintf("fd%d::%x/64", 30+segment, host)),
	}
}

func bridge(segment int) string { return fmt.Sprintf("segment%d", segment) }

func newFabric(dir string, segments int) (*fabric, error) {
	ns, err := netns.Prepared(filepath.Join(dir, "fabric"))
	if err != nil {
		return nil, err
	}
	f := &fabric{ns: ns, segments: segments}
	if err := ns.Do(f.build); err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return f, nil
}

func (f *fabric) build() error {
	for segment := range f.segments {
		if err := netns.Bridge(bridge(segment)); err != nil {
			return err
		}
		if err := netns.AddAddresses(bridge(segment), fabricAddresses(segment)...); err != nil {
			return err
		}
	}
	if err := ownPackets(); err != nil {
		return fmt.Errorf("set routing rules of the world: %w", err)
	}
	return netns.Forward()
}

// worldTable is the routing table for packets that the namespace of the fabric sends, not for those that it
// forwards.
const worldTable = 7500

func ownPackets() error {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		r := netlink.NewRule()
		r.Family, r.IifName, r.Table, r.Priority = family, "lo", worldTable, worldTable
		if err := netlink.RuleAdd(r); err != nil {
			return err
		}
	}
	return nil
}

// connect gives the namespace of a node an interface eth0 on the fabric. Emulated nodes read packets in user
// space and need complete checksums.
func (f *fabric) connect(n *Node) error {
	port := netns.End{NS: f.ns, Name: fmt.Sprintf("node%d", n.Number), Bridge: bridge(n.segment)}
	if err := netns.Connect(port, netns.End{NS: n.NS, Name: "eth0"}); err != nil {
		return err
	}
	return n.NS.Do(func() error {
		if err := netns.AddAddresses("eth0", n.underlay()...); err != nil {
			return err
		}
		if n.cluster.cfg.Windows > 0 {
			if err := netns.FillChecksums("eth0"); err != nil {
				return err
			}
		}
		return n.defaults()
	})
}

// defaults sets the node's default routes, from within its namespace.
func (n *Node) defaults() error {
	for _, gw := range n.cluster.families(fabricAddresses(n.segment)) {
		if err := netns.Route(anywhere(gw.Addr()), gw.Addr()); err != nil {
			return err
		}
	}
	return nil
}

// reach gives the rest of the world a route to a node's pods through the address of the node.
func (f *fabric) reach(n *Node) error {
	return f.ns.Do(func() error { return routesTo(n.Addresses(), n.PodCIDRs) })
}

func routesTo(via []netip.Addr, cidrs []netip.Prefix) error {
	for _, c := range cidrs {
		for _, a := range via {
			if a.Is6() == c.Addr().Is6() {
				if err := worldRoute(c, a); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func anywhere(like netip.Addr) netip.Prefix {
	if like.Is6() {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

func worldRoute(to netip.Prefix, via netip.Addr) error {
	if err := netlink.RouteReplace(&netlink.Route{Dst: netipx.PrefixIPNet(to), Gw: via.AsSlice(), Table: worldTable}); err != nil {
		return fmt.Errorf("set route to %s via %s: %w", to, via, err)
	}
	return nil
}
