// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"net/netip"
)

// routable returns the addresses of interfaces that packets to other machines or
// to pods can come from: no loopback, no link-local addresses.
func routable(all []net.Addr) []netip.Addr {
	var found []netip.Addr
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		if ip := p.Addr().Unmap().WithZone(""); ip.IsGlobalUnicast() {
			found = append(found, ip)
		}
	}
	return found
}
