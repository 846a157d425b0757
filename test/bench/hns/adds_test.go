// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// TestWatchOpen checks that the benchmark notices endpoints that are attached with no ACLs, or with ACLs that decide
// every packet but not as the policy does.
func TestWatchOpen(t *testing.T) {
	open := acl.DenyAll()
	for i := range open {
		open[i].Action = hns.Allow
	}
	half := slices.Clone(acl.DenyAll())
	half[1].Action = hns.Allow // from the pod
	for _, c := range []struct {
		name string
		acls []hns.ACL
		want string
	}{{"default deny", acl.DenyAll(), ""}, {"none", nil, "which its policy denies"}, {"all open", open, "which its policy denies"}, {"open from the pod", half, "which its policy denies"}} {
		ctx := context.Background()
		fake := hnstest.NewFake(hns.Server2022)
		n, err := fake.CreateNetwork(ctx, hns.Network{Name: network, Type: hns.L2Bridge, Ipams: []hns.Ipam{{Subnets: []hns.Subnet{{IPAddressPrefix: cidrOf(0).String(),
			Routes: []hns.Route{{NextHop: cidrOf(0).Addr().Next().String(), DestinationPrefix: netip.PrefixFrom(netip.IPv4Unspecified(), 0).String()}}}}}}})
		if err != nil {
			t.Fatal(err)
		}
		e := hns.Endpoint{Name: "web_eth0_" + network, HostComputeNetwork: n.ID}
		for _, a := range c.acls {
			e.Policies = append(e.Policies, a.Policy())
		}
		made, err := fake.CreateEndpoint(ctx, e)
		if err == nil {
			err = fake.AttachEndpoint(ctx, fake.AddNamespace(), made.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := watchOpen(fake)(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
