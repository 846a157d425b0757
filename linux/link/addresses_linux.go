// SPDX-License-Identifier: Apache-2.0

package link

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
)

// OwnAddresses returns all unicast addresses of this machine's interfaces.
func OwnAddresses() ([]netip.Addr, error) {
	own, _, err := Addresses()
	return own, err
}

// Addresses returns all unicast addresses of this machine's interfaces, and the broadcast and anycast addresses by which it
// receives because of them.
func Addresses() (own, broadcast []netip.Addr, err error) {
	all, err := Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range all {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			own = append(own, ip.Unmap())
			broadcast = append(broadcast, broadcastOf(a)...)
		}
	}
	return own, broadcast, nil
}

// broadcastOf returns the addresses by which the kernel receives besides that of an interface. In IPv4 these are the broadcast
// address of its prefix and one that was set, in IPv6 the anycast address of the routers of its prefix (RFC 4291, 2.6.1).
func broadcastOf(a netlink.Addr) (all []netip.Addr) {
	p, ok := netipx.FromStdIPNet(a.IPNet)
	if !ok || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast() {
		return nil
	}
	if p.Addr().Is6() {
		if p.Bits() < 127 { // RFC 6164
			all = append(all, p.Masked().Addr())
		}
		return all
	}
	if p.Bits() < 31 { // RFC 3021
		all = append(all, netipx.PrefixLastIP(p))
	}
	if set, ok := netip.AddrFromSlice(a.Broadcast); ok && !set.IsUnspecified() {
		all = append(all, set.Unmap())
	}
	return all
}
