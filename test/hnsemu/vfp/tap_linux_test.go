// SPDX-License-Identifier: Apache-2.0

package vfp_test

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/test/hnsemu/vfp"
	"github.com/isthmus-net/isthmus/test/netns"
)

// TestHostIndex checks that the interface of the host has the same index when it is made again. Wine would take it for the
// earlier one, so that an agent finds no interface with the host's address.
func TestHostIndex(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	ns := netns.ForTest(t)
	sw := vfp.New(vfp.Config{})
	spec := vfp.Spec{ID: "host", Host: true, MAC: net.HardwareAddr{0, 0x15, 0x5d, 0, 0, 1}, MTU: 1500, Addresses: []netip.Prefix{netip.MustParsePrefix("10.244.3.2/24")}}
	var indexes []int
	for range 2 {
		d, err := vfp.OpenTap(ns, "vEthernet", spec, sw)
		if err != nil {
			t.Fatal(err)
		}
		if err := ns.Do(func() error {
			l, err := netlink.LinkByName("vEthernet")
			if err == nil {
				indexes = append(indexes, l.Attrs().Index)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if indexes[0] != indexes[1] {
		t.Errorf("the interface of the host had the indexes %v", indexes)
	}
}
