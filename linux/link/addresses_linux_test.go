// SPDX-License-Identifier: Apache-2.0

package link

import (
	"fmt"
	"net"
	"testing"

	"github.com/vishvananda/netlink"
)

// A host also receives by the broadcast or anycast addresses of its prefixes.
func TestBroadcastOf(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.7/24": "[192.0.2.255]", "192.0.2.7/30": "[192.0.2.7]", "192.0.2.7/31": "[]", "192.0.2.7/32": "[]", "127.0.0.1/8": "[]",
		"169.254.3.4/16": "[]", "fd00:1::7/64": "[fd00:1::]", "fd00:1::7/126": "[fd00:1::4]", "fd00:1::7/127": "[]", "fd00:1::7/128": "[]", "fe80::1/64": "[]",
	} {
		ip, prefix, err := net.ParseCIDR(address)
		if err != nil {
			t.Fatal(err)
		}
		prefix.IP = ip
		if got := fmt.Sprint(broadcastOf(netlink.Addr{IPNet: prefix})); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
	set := netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 7), Mask: net.CIDRMask(32, 32)}, Broadcast: net.IPv4(192, 0, 2, 99)}
	if got := fmt.Sprint(broadcastOf(set)); got != "[192.0.2.99]" {
		t.Errorf("broadcast address that was set: %s", got)
	}
}
