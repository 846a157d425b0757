// SPDX-License-Identifier: Apache-2.0

package link

import (
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Tunnel is what the packets of a tunnel have in common.
type Tunnel struct {
	Protocol uint8  // IP protocol number
	Port     uint16 // of UDP, else 0
}

// tunnelProtocols are the protocols that devices receive, by their kind in the kernel. A device without a remote
// address accepts them from any host.
var tunnelProtocols = map[string][]uint8{
	"ipip": {unix.IPPROTO_IPIP, unix.IPPROTO_MPLS}, "sit": {unix.IPPROTO_IPV6, unix.IPPROTO_IPIP, unix.IPPROTO_MPLS},
	"ip6tnl": {unix.IPPROTO_IPV6, unix.IPPROTO_IPIP, unix.IPPROTO_MPLS},
	"gre":    {unix.IPPROTO_GRE}, "gretap": {unix.IPPROTO_GRE}, "erspan": {unix.IPPROTO_GRE},
	"ip6gre": {unix.IPPROTO_GRE}, "ip6gretap": {unix.IPPROTO_GRE}, "ip6erspan": {unix.IPPROTO_GRE},
}

// tunnelPorts are the UDP ports on which devices receive, by their kind in the kernel: GTP1U_PORT and GTP0_PORT, and PFCP_PORT.
var tunnelPorts = map[string][]uint16{"gtp": {2152, 3386}, "pfcp": {8805}}

// Tunnels returns the tunnels of devices that are up, with the index of a device for each. Those without a device have
// index 0: UDP ports of FOU and GUE, and L2TP directly in IP, whose module does not check the sender. The sockets of L2TP
// over UDP accept one sender only.
func Tunnels() (map[Tunnel]int, error) {
	links, err := Whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	families, err := Whole(netlink.GenlFamilyList) // a search by name would load the module
	if err != nil {
		return nil, fmt.Errorf("list families of generic netlink: %w", err)
	}
	all := tunnelsOf(links, families)
	if !hasFamily(families, netlink.FOU_GENL_NAME) {
		return all, nil
	}
	ports, err := Whole(func() ([]netlink.Fou, error) { return netlink.FouList(unix.AF_INET) }) // the kernel lists both families
	if err != nil {
		return nil, fmt.Errorf("list UDP ports of FOU: %w", err)
	}
	for _, p := range ports {
		all[Tunnel{unix.IPPROTO_UDP, uint16(p.Port)}] = 0
	}
	return all, nil
}

// hasFamily reports whether a module for a family of generic netlink is loaded.
func hasFamily(families []*netlink.GenlFamily, name string) bool {
	return slices.ContainsFunc(families, func(f *netlink.GenlFamily) bool { return f.Name == name })
}

func tunnelsOf(links []netlink.Link, families []*netlink.GenlFamily) map[Tunnel]int {
	all := make(map[Tunnel]int)
	if hasFamily(families, "l2tp") {
		all[Tunnel{Protocol: unix.IPPROTO_L2TP}] = 0
	}
	for _, l := range links {
		a := l.Attrs()
		if a.Flags&net.FlagUp == 0 {
			continue
		}
		if a.EncapType == "pimreg" { // the kernel forwards the multicast packet in a PIM register message
			all[Tunnel{Protocol: unix.IPPROTO_PIM}] = a.Index
		}
		switch d := l.(type) {
		case *netlink.Vxlan:
			all[Tunnel{unix.IPPROTO_UDP, uint16(d.Port)}] = a.Index
		case *netlink.Geneve:
			all[Tunnel{unix.IPPROTO_UDP, d.Dport}] = a.Index
		case *netlink.BareUDP:
			all[Tunnel{unix.IPPROTO_UDP, d.Port}] = a.Index
		default:
			for _, port := range tunnelPorts[l.Type()] {
				all[Tunnel{unix.IPPROTO_UDP, port}] = a.Index
			}
			for _, p := range tunnelProtocols[l.Type()] {
				all[Tunnel{Protocol: p}] = a.Index
			}
		}
	}
	return all
}
