// SPDX-License-Identifier: Apache-2.0

package hostroute

import (
	"net/netip"
	"os"
	"slices"
	"testing"
)

// TestSystem looks for a route that the host must have: that of its loopback
// addresses, or the one that ISTHMUS_ROUTE names.
func TestSystem(t *testing.T) {
	want := netip.MustParsePrefix("127.0.0.0/8")
	if named := os.Getenv("ISTHMUS_ROUTE"); named != "" {
		want = netip.MustParsePrefix(named)
	}
	list, err := System{}.Routes()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list {
		if r.Destination == want {
			t.Log(r)
			return
		}
	}
	t.Errorf("no route to %s among %v", want, list)
}

// TestSystemWrites adds and removes the route to ISTHMUS_WRITE by ISTHMUS_VIA, a neighbour, and turns
// forwarding of that interface off and on. It needs an administrator, and leaves forwarding on.
func TestSystemWrites(t *testing.T) {
	to, err := netip.ParsePrefix(os.Getenv("ISTHMUS_WRITE"))
	if err != nil {
		t.Skip("changes the host: set ISTHMUS_WRITE and ISTHMUS_VIA")
	}
	via := netip.MustParseAddr(os.Getenv("ISTHMUS_VIA"))
	family := FamilyOf(via)
	find := func() Interface {
		all, err := System{}.Interfaces()
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range all {
			for _, p := range i.Addresses {
				if p.Masked().Contains(via) {
					return i
				}
			}
		}
		t.Fatalf("no segment of %v contains %s", all, via)
		return Interface{}
	}
	i := find()
	if i.MTU < 1280 {
		t.Errorf("MTU %d of %s", i.MTU, i.Name)
	}
	for _, on := range []bool{true, false, true} {
		if err := (System{}).SetForwarding(i.Index, family, on); err != nil {
			t.Fatal(err)
		}
		if got := find().Forwarding[family]; got != on {
			t.Errorf("forwarding of %s is %t, want %t", i.Name, got, on)
		}
	}
	r := Route{Destination: to, NextHop: via, Interface: i.Index, Metric: 7300, Protocol: NetMgmt}
	listed := func() bool {
		list, err := System{}.Routes()
		if err != nil {
			t.Fatal(err)
		}
		return slices.Contains(list, r)
	}
	for range 2 { // existing routes, and missing ones on removal, are not errors
		if err := (System{}).Add(r); err != nil {
			t.Fatal(err)
		}
	}
	if !listed() {
		t.Errorf("%v is not listed", r)
	}
	for range 2 {
		if err := (System{}).Remove(r); err != nil {
			t.Fatal(err)
		}
	}
	if listed() {
		t.Errorf("%v is still listed", r)
	}
}
