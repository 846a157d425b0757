// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RouteProtocol marks the routes that Isthmus makes (rtm_protocol; not
// assigned in linux/rtnetlink.h).
const RouteProtocol netlink.RouteProtocol = 73

// Uplink is the interface by which other nodes are reached.
type Uplink struct {
	Name  string
	Index int
	MTU   int
	// Addresses are its global addresses, the first of each family.
	Addresses []netip.Addr
}

// FindUplink returns the named interface, or without a name the one that has
// the default route.
func FindUplink(name string) (Uplink, error) {
	var l netlink.Link
	var err error
	if name == "" {
		if name, err = defaultInterface(); err != nil {
			return Uplink{}, err
		}
	}
	if l, err = netlink.LinkByName(name); err != nil {
		return Uplink{}, fmt.Errorf("look for uplink %s: %w: name the interface to other nodes with --uplink", name, err)
	}
	u := Uplink{Name: name, Index: l.Attrs().Index, MTU: l.Attrs().MTU}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		addrs, err := netlink.AddrList(l, family)
		if err != nil {
			return Uplink{}, fmt.Errorf("list addresses of uplink %s: %w", name, err)
		}
		for _, a := range addrs {
			if ip, ok := netip.AddrFromSlice(a.IP); ok && a.Scope == int(netlink.SCOPE_UNIVERSE) {
				u.Addresses = append(u.Addresses, ip.Unmap())
				break
			}
		}
	}
	if len(u.Addresses) == 0 {
		return Uplink{}, fmt.Errorf("uplink %s has no global address: give it one, or name another interface with --uplink", name)
	}
	return u, nil
}

func defaultInterface() (string, error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteList(nil, family)
		if err != nil {
			return "", fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			if (r.Dst == nil || isAnywhere(r.Dst)) && r.LinkIndex > 0 {
				l, err := netlink.LinkByIndex(r.LinkIndex)
				if err != nil {
					return "", fmt.Errorf("look for the interface of the default route: %w", err)
				}
				return l.Attrs().Name, nil
			}
		}
	}
	return "", errors.New("no default route: name the interface to other nodes with --uplink")
}

func isAnywhere(n *net.IPNet) bool {
	ones, _ := n.Mask.Size()
	return ones == 0
}

// NextHop is a route to the pods of another node.
type NextHop struct {
	Prefix netip.Prefix
	Via    netip.Addr
}

// SetRoutes makes the node's routes those to the given next hops by the uplink,
// and none for the rest of its own ranges: what no pod has is unreachable and
// does not wander to the default route. Other routes of ours are removed,
// except for those to pods.
func SetRoutes(u Uplink, hops []NextHop, own []netip.Prefix) error {
	want := make(map[netip.Prefix]*netlink.Route)
	for _, h := range hops {
		want[h.Prefix] = &netlink.Route{LinkIndex: u.Index, Gw: h.Via.AsSlice(), Dst: ipNet(h.Prefix),
			Protocol: RouteProtocol, Flags: int(netlink.FLAG_ONLINK)}
	}
	for _, p := range own {
		want[p] = &netlink.Route{Dst: ipNet(p), Protocol: RouteProtocol, Type: unix.RTN_UNREACHABLE}
	}
	var errs []error
	for p, r := range want {
		if err := netlink.RouteReplace(r); err != nil {
			errs = append(errs, fmt.Errorf("set route to %s: %w", p, err))
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		filter := &netlink.Route{Protocol: RouteProtocol, Table: unix.RT_TABLE_MAIN}
		have, err := netlink.RouteListFiltered(family, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
		if err != nil {
			errs = append(errs, fmt.Errorf("list routes: %w", err))
			continue
		}
		for _, r := range have {
			if r.Dst == nil || r.Type == unix.RTN_UNICAST && r.LinkIndex != u.Index {
				continue
			}
			p := prefix(r.Dst)
			if want[p] == nil {
				if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
					errs = append(errs, fmt.Errorf("remove route to %s: %w", p, err))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// RemoveRoutes removes all routes of ours from the main table.
func RemoveRoutes() error {
	var errs []error
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		filter := &netlink.Route{Protocol: RouteProtocol, Table: unix.RT_TABLE_MAIN}
		have, err := netlink.RouteListFiltered(family, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
		if err != nil {
			errs = append(errs, fmt.Errorf("list routes: %w", err))
		}
		for _, r := range have {
			if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("remove route to %s: %w", r.Dst, err))
			}
		}
	}
	return errors.Join(errs...)
}

func prefix(n *net.IPNet) netip.Prefix {
	a, _ := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones)
}
