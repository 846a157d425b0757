// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"net/netip"
)

// routable returns the interface addresses that packets to other machines or to pods can have as source: no
// loopback and no link-local addresses.
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
