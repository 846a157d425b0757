// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"testing"
)

// TestRoutable checks that loopback and link-local addresses are not admitted: no probe comes from
// them.
func TestRoutable(t *testing.T) {
	var all []net.Addr
	for _, text := range []string{"127.0.0.1/8", "192.168.0.1/24", "169.254.3.4/16", "10.244.1.2/24", "::1/128", "fe80::1/64", "fd00:1::2/64", "224.0.0.1/4"} {
		ip, n, err := net.ParseCIDR(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, &net.IPNet{IP: ip, Mask: n.Mask})
	}
	all = append(all, &net.UnixAddr{Name: "x"})
	if got := fmt.Sprint(routable(all)); got != "[192.168.0.1 10.244.1.2 fd00:1::2]" {
		t.Errorf("%s", got)
	}
}
