// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"testing"
)

// TestNetworks checks that the addresses of a cluster are in their ranges, and that none is used twice.
func TestNetworks(t *testing.T) {
	for value, all := range networks {
		seen := make(map[netip.Addr]string)
		for _, n := range all {
			for _, service := range []netip.Addr{n.kubernetes, n.dns} {
				if !n.services.Contains(service) {
					t.Errorf("-ip %s: Service %s is not in %s", value, service, n.services)
				}
			}
			taken := map[string]netip.Addr{"control plane": n.fabric.Addr(), "Windows node": n.windows().Addr(), "guest": n.guest().Addr()}
			for i := range 9 {
				taken[n.version()+" node "+string(rune('1'+i))] = n.node(i + 1)
			}
			for who, a := range taken {
				if other, ok := seen[a]; ok {
					t.Errorf("-ip %s: %s and %s have the address %s", value, who, other, a)
				}
				seen[a] = who
				if !n.fabric.Masked().Contains(a) {
					t.Errorf("-ip %s: %s %s is not in %s", value, who, a, n.fabric)
				}
			}
		}
	}
	if _, err := networksOf("5"); err == nil {
		t.Error("-ip 5 is accepted")
	}
	if got, want := join(networks["dual"], podsOf), "10.244.0.0/16,fd00:10:244::/56"; got != want {
		t.Errorf("pod ranges %s, want %s", got, want)
	}
}
