// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"net"
	"slices"
)

// hasAddress reports whether one of the addresses of a host's interfaces is ip. None is the address of an endpoint without one.
func hasAddress(all []net.Addr, ip net.IP) bool {
	return ip != nil && slices.ContainsFunc(all, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.Equal(ip)
	})
}
