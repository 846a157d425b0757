// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/linux"
)

// The node answers no packet with a forged source: its answers, and its ICMP errors, would reach any pod.
func TestAttackReflection(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		g := newGuarded(t, change)
		g.must(g.node.Do(func() error {
			return errors.Join(sysctl("ipv4/conf/all/rp_filter", "0"), sysctl("ipv4/conf/eth0/rp_filter", "0"), sysctl("ipv4/icmp_ratelimit", "0"), sysctl("ipv6/icmp/ratelimit", "0"))
		}))
		g.idleUntilQuiet()
		v := &volley{l: g.lab}
		for i, f := range addressSets {
			nowhere := []string{"203.0.113.7", "2001:db8::7"}[i]
			for name, make := range protocols(f.v6) {
				for _, k := range []struct {
					what, dst string
					hops      uint8
				}{
					{"to the node", f.node, 64},
					{"to outside, with its last hop", f.out, 1},
					{"to an address without a route", nowhere, 64},
				} {
					v.try(g.wo, g.wc, fmt.Sprintf("%s from the uplink as c %s (%s)", name, k.what, k.dst), func(word string) []byte {
						ip := ipHeader(f.c, k.dst, numberOf(name, f.v6))
						switch ip := ip.(type) {
						case *layers.IPv4:
							ip.TTL = k.hops
						case *layers.IPv6:
							ip.HopLimit = k.hops
						}
						return packet(g.wo.mac, g.up, ip, make(word)...)
					})
				}
			}
			v.held(g.controls(f)...)
		}
	})
}
