// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/ipam"
)

func TestAllocateFixed(t *testing.T) {
	a := newAllocator(t, []uint64{2}, "10.0.0.0/28", "10.9.0.0/28", "fd00::/64")
	ips, err := a.AllocateFixed("a", []netip.Addr{addr("fd00::99"), addr("10.9.0.5")}, t0)
	if err != nil || !slices.Equal(ips, []netip.Addr{addr("10.9.0.5"), addr("fd00::99")}) {
		t.Fatalf("got %v, %v", ips, err)
	}
	if ips, err := a.AllocateFixed("a", []netip.Addr{addr("10.0.0.7")}, t0); err != nil || ips[0] != addr("10.9.0.5") {
		t.Errorf("the second time: %v, %v", ips, err)
	}
	var taken *ipam.TakenError
	if _, err := a.AllocateFixed("b", []netip.Addr{addr("fd00::99")}, t0); !errors.As(err, &taken) || taken.Owner != "a" {
		t.Errorf("an address in use: %v", err)
	}
	if _, ok := a.Owner(addr("10.0.0.3")); ok {
		t.Error("an address was given out although the other was not free")
	}
	for text := range map[string]bool{"10.0.0.0": true, "10.0.0.1": true, "10.0.0.2": true, "10.0.0.15": true, "10.1.0.0": true, "fd00::": true, "fd01::5": true} {
		var unusable *ipam.UnusableError
		if _, err := a.AllocateFixed("b", []netip.Addr{addr(text)}, t0); !errors.As(err, &unusable) || unusable.Addr != addr(text) {
			t.Errorf("%s: %v", text, err)
		}
	}
	a.Release(addr("10.9.0.5"), t0)
	if _, err := a.AllocateFixed("b", []netip.Addr{addr("10.9.0.5")}, t0.Add(30*time.Second-1)); !errors.As(err, &taken) || taken.Owner != "" || !taken.Until.Equal(t0.Add(30*time.Second)) {
		t.Errorf("in quarantine: %v", err)
	}
	a.Recall(addr("10.9.0.5"))
	if ips, err := a.AllocateFixed("b", []netip.Addr{addr("10.9.0.5")}, t0); err != nil || len(ips) != 2 || ips[0] != addr("10.9.0.5") || !ips[1].Is6() {
		t.Errorf("recalled: %v, %v", ips, err)
	}
	if u := a.Usage(t0); u[0].Used != 0 || u[1].Used != 1 || u[1].Quarantined != 0 {
		t.Errorf("usage %+v", u)
	}
}
