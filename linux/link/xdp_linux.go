// SPDX-License-Identifier: Apache-2.0

package link

import (
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// XDPMode returns where the XDP program of an interface runs: "native" in the driver, "generic"
// in the kernel's stack, "offloaded" in the device, "several" or "none".
func XDPMode(index int) (string, error) {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return "", fmt.Errorf("find interface %d: %w", index, err)
	}
	x := l.Attrs().Xdp
	if x == nil || !x.Attached {
		return "none", nil
	}
	switch x.AttachMode {
	case nl.XDP_ATTACHED_DRV:
		return "native", nil
	case nl.XDP_ATTACHED_SKB:
		return "generic", nil
	case nl.XDP_ATTACHED_HW:
		return "offloaded", nil
	}
	return "several", nil
}

// DefaultInterfaces returns the names of the interfaces that have a default route, sorted. A
// route with several next hops counts for all of them.
func DefaultInterfaces() ([]string, error) {
	indexes := make(map[int]bool)
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := Whole(func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			if r.Dst != nil && !isAnywhere(r.Dst) || r.Type != unix.RTN_UNICAST {
				continue
			}
			indexes[r.LinkIndex] = true
			for _, hop := range r.MultiPath {
				indexes[hop.LinkIndex] = true
			}
		}
	}
	var names []string
	for index := range indexes {
		if index == 0 {
			continue
		}
		l, err := netlink.LinkByIndex(index)
		if err != nil {
			return nil, fmt.Errorf("find the interface of a default route: %w", err)
		}
		names = append(names, l.Attrs().Name)
	}
	slices.Sort(names)
	return names, nil
}

func isAnywhere(n *net.IPNet) bool {
	ones, _ := n.Mask.Size()
	return ones == 0
}
