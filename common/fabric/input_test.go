// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
)

// TestInput checks that an input changes with each of its slices, and not when a State shares all of them.
func TestInput(t *testing.T) {
	base := Self{
		Name:      "n1",
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd44:0:0:1::/64")},
		Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.11")},
	}
	peers := []model.Route{{Node: "n2"}, {Node: "n3"}}
	for name, c := range map[string]struct {
		change  func(self *Self, peers *[]model.Route)
		changed bool
	}{
		"the same slices":  {func(*Self, *[]model.Route) {}, false},
		"a copy of peers":  {func(_ *Self, p *[]model.Route) { *p = slices.Clone(*p) }, true},
		"fewer peers":      {func(_ *Self, p *[]model.Route) { *p = (*p)[:1] }, true},
		"no peers":         {func(_ *Self, p *[]model.Route) { *p = nil }, true},
		"other pod ranges": {func(s *Self, _ *[]model.Route) { s.PodCIDRs = slices.Clone(s.PodCIDRs) }, true},
		"other addresses":  {func(s *Self, _ *[]model.Route) { s.Addresses = slices.Clone(s.Addresses) }, true},
	} {
		var i Input
		if !i.Set(base, peers) || !i.Known {
			t.Fatalf("%s: the first input is not a change", name)
		}
		self, now := base, peers
		c.change(&self, &now)
		if got := i.Set(self, now); got != c.changed {
			t.Errorf("%s: changed is %t, want %t", name, got, c.changed)
		}
		if len(i.Peers) != len(now) || i.Set(self, now) {
			t.Errorf("%s: the input is not kept", name)
		}
	}
	var none Input
	if !none.Set(Self{}, nil) || none.Set(Self{}, nil) {
		t.Error("an input without nodes is a change once")
	}
}
