// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"
)

// End is one end of a veth pair.
type End struct {
	NS   *NS
	Name string
	MTU  int // 0: the default of the kernel
	// Index, if not 0, is the index of the interface. Only the first end of Connect can have one.
	Index int
	// Bridge, if set, is the bridge of the namespace that the end becomes a port of.
	Bridge string
}

// Connect creates a veth pair between two namespaces. It enables an end that is a port of a bridge. AddAddresses
// enables the other end.
func Connect(a, b End) error {
	if b.Index != 0 {
		return fmt.Errorf("connect %s with %s: the second end cannot have a chosen index", a.Name, b.Name)
	}
	peer, err := os.Open(b.NS.path)
	if err != nil {
		return err
	}
	defer peer.Close()
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: a.Name, MTU: a.MTU, Index: a.Index}, PeerName: b.Name, PeerMTU: uint32(b.MTU),
		PeerNamespace: netlink.NsFd(int(peer.Fd()))}
	if err := a.NS.Do(func() error { return netlink.LinkAdd(veth) }); err != nil {
		return fmt.Errorf("connect %s with %s: %w", a.Name, b.Name, err)
	}
	for _, e := range []End{a, b} {
		if e.Bridge != "" {
			if err := e.NS.Do(func() error { return enslave(e.Name, e.Bridge) }); err != nil {
				return err
			}
		}
	}
	return nil
}

func enslave(name, bridge string) error {
	master, err := netlink.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", bridge, err)
	}
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", name, err)
	}
	return errors.Join(netlink.LinkSetMaster(l, master), netlink.LinkSetUp(l))
}

// The functions below act on the namespace of the calling thread: call them in Do.

// Bridge creates a bridge. SetAddresses or Up enables it.
func Bridge(name string) error {
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil {
		return fmt.Errorf("create bridge %s: %w", name, err)
	}
	return nil
}

// Up enables an interface.
func Up(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", name, err)
	}
	return netlink.LinkSetUp(l)
}

// Remove removes an interface, and with it the other end of a veth pair.
func Remove(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", name, err)
	}
	return netlink.LinkDel(l)
}

// AddAddresses gives an interface addresses, without duplicate address detection, and enables it.
// Addresses that it has already stay.
func AddAddresses(name string, prefixes ...netip.Prefix) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", name, err)
	}
	for _, p := range prefixes {
		if err := netlink.AddrReplace(l, &netlink.Addr{IPNet: netipx.PrefixIPNet(p), Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("add address %s to %s: %w", p, name, err)
		}
	}
	return netlink.LinkSetUp(l)
}

// RemoveAddresses removes addresses from an interface.
func RemoveAddresses(name string, prefixes ...netip.Prefix) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", name, err)
	}
	for _, p := range prefixes {
		if err := netlink.AddrDel(l, &netlink.Addr{IPNet: netipx.PrefixIPNet(p)}); err != nil {
			return fmt.Errorf("remove address %s from %s: %w", p, name, err)
		}
	}
	return nil
}

// Route adds or replaces a route.
func Route(to netip.Prefix, via netip.Addr) error {
	if err := netlink.RouteReplace(&netlink.Route{Dst: netipx.PrefixIPNet(to), Gw: via.AsSlice()}); err != nil {
		return fmt.Errorf("set route to %s via %s: %w", to, via, err)
	}
	return nil
}

// ForgetNeighbours forgets the hardware addresses of IPv6 neighbours, except permanent ones.
func ForgetNeighbours() error {
	list, err := netlink.NeighList(0, netlink.FAMILY_V6)
	if err != nil {
		return fmt.Errorf("list neighbours: %w", err)
	}
	for _, n := range list {
		if n.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) != 0 {
			continue
		}
		if err := netlink.NeighDel(&n); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("forget neighbour %s: %w", n.IP, err)
		}
	}
	return nil
}

// Forward makes the namespace forward packets of both IP versions.
func Forward() error { return setSysctls("1", "ipv4/ip_forward", "ipv6/conf/all/forwarding") }

// StopForwarding makes the namespace, and interfaces that are created later, forward no packets. A new namespace
// inherits the IPv4 settings of the machine.
func StopForwarding() error {
	return setSysctls("0", "ipv4/ip_forward", "ipv6/conf/all/forwarding", "ipv4/conf/default/forwarding", "ipv6/conf/default/forwarding")
}

// TrustAddresses makes interfaces that are created later use their addresses immediately. During duplicate
// address detection of a link-local address, one or two seconds after a link is up, a router does not resolve
// neighbours. On real nodes this has ended before they join a cluster.
func TrustAddresses() error { return setSysctls("0", "ipv6/conf/default/accept_dad") }

func setSysctls(value string, paths ...string) error {
	for _, path := range paths {
		if err := os.WriteFile("/proc/sys/net/"+path, []byte(value), 0); err != nil {
			return err
		}
	}
	return nil
}
