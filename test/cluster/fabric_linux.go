// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/test/netns"
)

// fabric is the network between the nodes: a namespace with a bridge for each
// segment. It is the router between them, and also the rest of the world.
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
	ns, err := netns.New(filepath.Join(dir, "fabric"))
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
	if err := trustAddresses(); err != nil {
		return err
	}
	if err := up("lo"); err != nil {
		return err
	}
	for segment := range f.segments {
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge(segment)}}); err != nil {
			return fmt.Errorf("create bridge: %w", err)
		}
		if err := addresses(bridge(segment), fabricAddresses(segment)); err != nil {
			return err
		}
	}
	for _, path := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/net/"+path, []byte("1"), 0); err != nil {
			return err
		}
	}
	return nil
}

// trustAddresses makes interfaces to come use their addresses at once. While
// duplicate address detection tests a link-local address, one or two seconds
// after a link came up, a router asks no neighbour for others; nodes that
// joined a cluster are past that.
func trustAddresses() error {
	return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0)
}

// connect gives a node's namespace an interface eth0 on the fabric. Emulated
// nodes read the others' packets in user space and need whole ones.
func (f *fabric) connect(n *Node) error {
	port := fmt.Sprintf("node%d", n.Number)
	if err := n.NS.Do(trustAddresses); err != nil {
		return err
	}
	err := f.ns.Do(func() error {
		target, err := openNS(n.NS)
		if err != nil {
			return err
		}
		defer target.Close()
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: port}, PeerName: "eth0", PeerNamespace: netlink.NsFd(target.Fd())}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("connect node %d: %w", n.Number, err)
		}
		master, err := netlink.LinkByName(bridge(n.segment))
		if err != nil {
			return err
		}
		l, err := netlink.LinkByName(port)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMaster(l, master); err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	})
	if err != nil {
		return err
	}
	return n.NS.Do(func() error {
		if err := up("lo"); err != nil {
			return err
		}
		if err := addresses("eth0", n.underlay()); err != nil {
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
		if err := route(anywhere(gw.Addr()), gw.Addr()); err != nil {
			return err
		}
	}
	return nil
}

// reach routes a node's pods by the node's address.
func (f *fabric) reach(n *Node) error {
	return f.ns.Do(func() error { return routesTo(n.Addresses(), n.PodCIDRs) })
}

func routesTo(via []netip.Addr, cidrs []netip.Prefix) error {
	for _, c := range cidrs {
		for _, a := range via {
			if a.Is6() == c.Addr().Is6() {
				if err := route(c, a); err != nil {
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

func up(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("look for interface %s: %w", name, err)
	}
	return netlink.LinkSetUp(l)
}

func addresses(name string, prefixes []netip.Prefix) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("look for interface %s: %w", name, err)
	}
	for _, p := range prefixes {
		if err := netlink.AddrReplace(l, &netlink.Addr{IPNet: netipx.PrefixIPNet(p), Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("set address %s of %s: %w", p, name, err)
		}
	}
	return netlink.LinkSetUp(l)
}

func removeAddresses(name string, prefixes []netip.Prefix) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("look for interface %s: %w", name, err)
	}
	for _, p := range prefixes {
		if err := netlink.AddrDel(l, &netlink.Addr{IPNet: netipx.PrefixIPNet(p)}); err != nil {
			return fmt.Errorf("remove address %s of %s: %w", p, name, err)
		}
	}
	return nil
}

func route(to netip.Prefix, via netip.Addr) error {
	if err := netlink.RouteReplace(&netlink.Route{Dst: netipx.PrefixIPNet(to), Gw: via.AsSlice()}); err != nil {
		return fmt.Errorf("set route to %s via %s: %w", to, via, err)
	}
	return nil
}
