// SPDX-License-Identifier: Apache-2.0

package outbound_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/outbound"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, t := range texts {
		all = append(all, netip.MustParsePrefix(t))
	}
	return all
}

func addresses(texts ...string) (all []netip.Addr) {
	for _, t := range texts {
		all = append(all, netip.MustParseAddr(t))
	}
	return all
}

var (
	own    = prefixes("10.0.1.0/24", "fd00:1::/64")
	routes = []model.Route{
		{Node: "linux", OS: model.Linux, Addresses: addresses("192.168.0.2", "fd00:ffff::2"), PodCIDRs: prefixes("10.0.0.0/24", "fd00::/64")},
		{Node: "win2", OS: model.Windows, Addresses: addresses("192.168.0.3"), PodCIDRs: prefixes("10.0.2.0/23")},
		{Node: "ovn", OS: model.Linux, Foreign: true, Addresses: addresses("192.168.0.4"), PodCIDRs: prefixes("10.128.2.0/23")},
	}
	state = model.FabricState{PodCIDRs: own, NodeAddresses: addresses("192.168.0.1"), Routes: routes}
)

// TestExceptions checks that exceptions are the ranges of the cluster, joined where they are
// adjacent. They do not include hosts of Windows and foreign nodes on an overlay.
func TestExceptions(t *testing.T) {
	for overlay, want := range map[bool]string{
		false: "[10.0.0.0/22 10.96.0.0/12 10.128.2.0/23 192.168.0.1/32 192.168.0.2/31 192.168.0.4/32 fd00::/64 fd00:1::/64 fd00:ffff::2/128]",
		true:  "[10.0.0.0/22 10.96.0.0/12 10.128.2.0/23 192.168.0.2/32 fd00::/64 fd00:1::/64 fd00:ffff::2/128]",
	} {
		if got := fmt.Sprint(outbound.Exceptions(state, own, prefixes("10.96.0.0/12"), overlay)); got != want {
			t.Errorf("overlay %t: %s, want %s", overlay, got, want)
		}
	}
	if outbound.Known(model.FabricState{}) || !outbound.Known(state) {
		t.Error("a State without nodes counts as known")
	}
}

// TestPolicies checks that each IP version of the pod has one policy, in the form that HNS accepts.
func TestPolicies(t *testing.T) {
	exceptions := outbound.Exceptions(state, own, nil, false)
	list := outbound.Policies(exceptions, addresses("10.0.1.7", "fd00:1::7"))
	if len(list) != 2 || !strings.Contains(string(list[0].Settings), `"10.0.0.0/22"`) || strings.Contains(string(list[0].Settings), "fd00") ||
		!strings.Contains(string(list[1].Settings), `"fd00:1::/64"`) {
		t.Errorf("%v", list)
	}
	if list = outbound.Policies(exceptions, addresses("10.0.1.7")); len(list) != 1 {
		t.Errorf("%v", list)
	}
}

func TestCovers(t *testing.T) {
	nat := func(n hns.OutBoundNAT) hns.Policy { return hns.MakePolicy(hns.TypeOutBoundNAT, n) }
	want := nat(hns.OutBoundNAT{Exceptions: []string{"10.0.0.0/24", "10.0.1.0/24"}})
	for name, c := range map[string]struct {
		have hns.Policy
		want bool
	}{
		"the same":        {want, true},
		"one range":       {nat(hns.OutBoundNAT{Exceptions: []string{"10.0.0.0/23"}}), true},
		"more":            {nat(hns.OutBoundNAT{Exceptions: []string{"10.0.1.0/24", "10.0.0.0/24", "10.0.9.0/24"}}), true},
		"one is missing":  {nat(hns.OutBoundNAT{Exceptions: []string{"10.0.0.0/24"}}), false},
		"a part":          {nat(hns.OutBoundNAT{Exceptions: []string{"10.0.0.0/24", "10.0.1.0/25"}}), false},
		"none":            {nat(hns.OutBoundNAT{}), false},
		"IPv6":            {nat(hns.OutBoundNAT{Exceptions: []string{"10.0.0.0/23"}, Flags: hns.NATIPv6}), false},
		"another purpose": {nat(hns.OutBoundNAT{Exceptions: []string{"10.0.0.0/23"}, Destinations: []string{"10.0.1.7"}}), false},
		"another type":    {hns.MakePolicy(hns.TypeSDNRoute, hns.SDNRoute{}), false},
	} {
		if got := outbound.Covers(c.have, want); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
