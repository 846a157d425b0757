// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"net"
	"testing"
)

// TestHasAddress compares addresses in both of their forms.
func TestHasAddress(t *testing.T) {
	host := []net.Addr{&net.IPNet{IP: net.IPv4(127, 0, 0, 1).To4(), Mask: net.CIDRMask(8, 32)}, &net.IPNet{IP: net.IPv4(10, 244, 3, 2).To4(), Mask: net.CIDRMask(24, 32)}, &net.IPAddr{}}
	for text, want := range map[string]bool{"10.244.3.2": true, "::ffff:10.244.3.2": true, "10.244.3.3": false, "": false} {
		if got := hasAddress(host, net.ParseIP(text)); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}
