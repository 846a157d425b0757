// SPDX-License-Identifier: Apache-2.0

package link

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// checkPodRoutes describes what is missing of the routes and neighbours that podRoutes writes. Audits
// do not repair them (dataplane.Installed).
func checkPodRoutes(h *netlink.Handle, l netlink.Link, s PairSpec, hostMAC net.HardwareAddr) (problems []string) {
	for _, ip := range s.IPs {
		gateway, family, version := GatewayFor(ip), netlink.FAMILY_V4, 4
		if ip.Is6() {
			family, version = netlink.FAMILY_V6, 6
		}
		routes, err := Whole(func() ([]netlink.Route, error) {
			return h.RouteListFiltered(family, &netlink.Route{LinkIndex: l.Attrs().Index, Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return append(problems, fmt.Sprintf("list routes of %s in %s: %v", s.IfName, s.NetNS, err))
		}
		if !slices.ContainsFunc(routes, func(r netlink.Route) bool { return isDefault(r, gateway) }) {
			problems = append(problems, fmt.Sprintf("default route by %s in %s is missing: recreate the pod, or run there: ip -%d route add default via %s dev %s onlink",
				s.IfName, s.NetNS, version, gateway, s.IfName))
		}
		neighbours, err := Whole(func() ([]netlink.Neigh, error) { return h.NeighList(l.Attrs().Index, family) })
		if err != nil {
			return append(problems, fmt.Sprintf("list neighbours of %s in %s: %v", s.IfName, s.NetNS, err))
		}
		if !slices.ContainsFunc(neighbours, func(n netlink.Neigh) bool {
			return n.IP.Equal(gateway.AsSlice()) && bytes.Equal(n.HardwareAddr, hostMAC)
		}) {
			problems = append(problems, fmt.Sprintf("neighbour %s of %s in %s is missing or has another address than %s: recreate the pod, or run there: ip neigh replace %s lladdr %s dev %s nud permanent",
				gateway, s.IfName, s.NetNS, hostMAC, gateway, hostMAC, s.IfName))
		}
	}
	return problems
}

// isDefault reports whether a route leads everywhere by a gateway. netlink has two forms of such a destination.
func isDefault(r netlink.Route, gateway netip.Addr) bool {
	everywhere := r.Dst == nil
	if !everywhere {
		ones, _ := r.Dst.Mask.Size()
		everywhere = ones == 0 && r.Dst.IP.IsUnspecified()
	}
	return everywhere && r.Gw.Equal(gateway.AsSlice())
}
