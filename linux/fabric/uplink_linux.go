// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/linux/link"
)

// Uplink is the interface to other nodes.
type Uplink struct {
	Name  string
	Index int
	MTU   int
	// Ethernet is true if its frames begin with an Ethernet header.
	Ethernet bool
	// Prefixes are its global addresses, with the prefixes of its segment.
	Prefixes []netip.Prefix
}

// Addresses are the first of each IP version.
func (u Uplink) Addresses() []netip.Addr {
	var all []netip.Addr
	for _, p := range u.Prefixes {
		if len(all) == 0 || all[len(all)-1].Is6() != p.Addr().Is6() {
			all = append(all, p.Addr())
		}
	}
	return all
}

func (u Uplink) same(v Uplink) bool {
	return u.Name == v.Name && u.Index == v.Index && u.MTU == v.MTU && slices.Equal(u.Prefixes, v.Prefixes)
}

// FindUplink returns the named interface, or that of the default route if the name is empty.
func FindUplink(name string) (Uplink, error) {
	var l netlink.Link
	var err error
	if name == "" {
		if name, err = defaultInterface(); err != nil {
			return Uplink{}, err
		}
	}
	if l, err = netlink.LinkByName(name); err != nil {
		return Uplink{}, fmt.Errorf("find uplink %s: %w: name the interface to other nodes with --uplink", name, err)
	}
	u := Uplink{Name: name, Index: l.Attrs().Index, MTU: l.Attrs().MTU, Ethernet: l.Attrs().EncapType == "ether"}
	for _, family := range families {
		addrs, err := link.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(l, family) })
		if err != nil {
			return Uplink{}, fmt.Errorf("list addresses of uplink %s: %w", name, err)
		}
		for _, a := range addrs {
			if p, ok := prefixOf(a.IPNet); ok && a.Scope == int(netlink.SCOPE_UNIVERSE) {
				u.Prefixes = append(u.Prefixes, p)
			}
		}
	}
	if len(u.Prefixes) == 0 {
		return Uplink{}, fmt.Errorf("uplink %s has no global address: give it one, or name another interface with --uplink", name)
	}
	return u, nil
}

var families = []int{netlink.FAMILY_V4, netlink.FAMILY_V6}

func defaultInterface() (string, error) {
	for _, family := range families {
		routes, err := link.Whole(func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
		if err != nil {
			return "", fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			if p, ok := prefixOf(r.Dst); (!ok || p.Bits() == 0) && r.LinkIndex > 0 {
				l, err := netlink.LinkByIndex(r.LinkIndex)
				if err != nil {
					return "", fmt.Errorf("find the interface of the default route: %w", err)
				}
				return l.Attrs().Name, nil
			}
		}
	}
	return "", errors.New("no default route: name the interface to other nodes with --uplink")
}

func isIPv6(p netip.Prefix) bool { return p.Addr().Is6() }
