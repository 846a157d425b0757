// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/windows/hostroute"
)

// Stack returns the IP stack of this process's namespace in the form of hostroute, which describes
// Windows.
func (h *Host) Stack() hostroute.Stack { return stack{} }

type stack struct{}

var protocols = map[netlink.RouteProtocol]uint32{unix.RTPROT_KERNEL: 2} // MIB_IPPROTO_LOCAL

// Routes implements hostroute.Table with the main routing table.
func (stack) Routes() (all []hostroute.Route, _ error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := link.Whole(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			to, ok := netipx.FromStdIPNet(r.Dst)
			if !ok {
				to = netip.PrefixFrom(unspecified(family), 0)
			}
			hop, ok := netip.AddrFromSlice(r.Gw)
			if hop = hop.Unmap(); !ok {
				hop = unspecified(family)
			}
			protocol, known := protocols[r.Protocol]
			if !known {
				protocol = hostroute.NetMgmt
			}
			all = append(all, hostroute.Route{Destination: to, NextHop: hop, Interface: uint32(r.LinkIndex), Metric: uint32(r.Priority), Protocol: protocol})
		}
	}
	return all, nil
}

func unspecified(family int) netip.Addr {
	if family == netlink.FAMILY_V6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

func kernelRoute(r hostroute.Route) *netlink.Route {
	k := &netlink.Route{Dst: netipx.PrefixIPNet(r.Destination), LinkIndex: int(r.Interface), Priority: int(r.Metric), Protocol: unix.RTPROT_STATIC}
	if !r.NextHop.IsUnspecified() {
		k.Gw = r.NextHop.AsSlice()
	}
	return k
}

// Add implements hostroute.Table.
func (stack) Add(r hostroute.Route) error {
	if err := netlink.RouteAdd(kernelRoute(r)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add the route to %s: %w", r.Destination, err)
	}
	return nil
}

// Remove implements hostroute.Stack.
func (stack) Remove(r hostroute.Route) error {
	if err := netlink.RouteDel(kernelRoute(r)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("remove the route to %s: %w", r.Destination, err)
	}
	return nil
}

// Interfaces implements hostroute.Stack.
func (stack) Interfaces() (all []hostroute.Interface, _ error) {
	links, err := link.Whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	for _, l := range links {
		i := hostroute.Interface{Index: uint32(l.Attrs().Index), Name: l.Attrs().Name, MTU: l.Attrs().MTU}
		addresses, err := link.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
		if err != nil {
			return nil, fmt.Errorf("list addresses of %s: %w", i.Name, err)
		}
		for _, a := range addresses {
			if p, ok := netipx.FromStdIPNet(a.IPNet); ok {
				i.Addresses = append(i.Addresses, p)
			}
		}
		for _, f := range []hostroute.Family{hostroute.IPv4, hostroute.IPv6} {
			i.Forwarding[f] = readFlag(f, i.Name)
		}
		all = append(all, i)
	}
	return all, nil
}

// flagFile returns the sysctl of an interface, or of "all".
func flagFile(f hostroute.Family, name string) string {
	return fmt.Sprintf("/proc/sys/net/%s/conf/%s/forwarding", strings.ToLower(f.String()), name)
}

// readFlag reads a flag. An interface without that IP version has no flag.
func readFlag(f hostroute.Family, name string) bool {
	text, err := os.ReadFile(flagFile(f, name))
	return err == nil && string(text) == "1\n"
}

func writeFlag(f hostroute.Family, name string, on bool) error {
	value := "0"
	if on {
		value = "1"
	}
	return os.WriteFile(flagFile(f, name), []byte(value), 0)
}

// SetForwarding implements hostroute.Stack.
func (stack) SetForwarding(index uint32, f hostroute.Family, on bool) error {
	l, err := netlink.LinkByIndex(int(index))
	if err != nil {
		return fmt.Errorf("find interface %d: %w", index, err)
	}
	if err := writeFlag(f, l.Attrs().Name, on); err != nil || f == hostroute.IPv4 {
		return err
	}
	return forward6()
}

// forward6 makes the kernel forward IPv6 packets while all interfaces do. The kernel uses a single
// flag, Windows one per interface. So a test notices a program that does not set all of them.
func forward6() error {
	links, err := link.Whole(netlink.LinkList)
	if err != nil {
		return err
	}
	links = slices.DeleteFunc(links, func(l netlink.Link) bool {
		_, err := os.Stat(flagFile(hostroute.IPv6, l.Attrs().Name))
		return errors.Is(err, fs.ErrNotExist)
	})
	on := map[string]bool{"default": readFlag(hostroute.IPv6, "default")}
	for _, l := range links {
		on[l.Attrs().Name] = readFlag(hostroute.IPv6, l.Attrs().Name)
	}
	all := !slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().Name != "lo" && !on[l.Attrs().Name] })
	if all == readFlag(hostroute.IPv6, "all") {
		return nil
	}
	errs := []error{writeFlag(hostroute.IPv6, "all", all)} // sets the flag of every interface, and that of later ones
	for name, was := range on {
		errs = append(errs, writeFlag(hostroute.IPv6, name, was))
	}
	return errors.Join(errs...)
}
