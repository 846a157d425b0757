// SPDX-License-Identifier: Apache-2.0

package hnstest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// TestRespell: every answer has addresses in another spelling, what is stored has not, and HNS accepts what it has shown.
func TestRespell(t *testing.T) {
	ctx := context.Background()
	f := hnstest.NewFake(hns.Server2022)
	f.Respell = true
	subnet := hns.Subnet{IPAddressPrefix: "fd00::/64", Routes: []hns.Route{{NextHop: "fd00::1", DestinationPrefix: "::/0"}}}
	n, err := f.CreateNetwork(ctx, hns.Network{Name: "n", Type: hns.L2Bridge, Ipams: []hns.Ipam{{Type: "Static", Subnets: []hns.Subnet{subnet}}}, SchemaVersion: hns.Schema2})
	if err != nil {
		t.Fatal(err)
	}
	if n, err = f.ModifyNetwork(ctx, n.ID, hns.Add, hns.SetPolicy{ID: "s", Name: "s", PolicyType: hns.IPSet, Values: "fd00::a,10.0.0.1"}.Policy()); err != nil {
		t.Fatal(err)
	}
	policies := []hns.Policy{
		hns.ACL{ID: "a", Action: hns.Allow, Direction: hns.In, RuleType: hns.Switch, Priority: 100, RemoteAddresses: "10.0.0.1,fd00:2::/64"}.Policy(),
		hns.ACL{ID: "b", Action: hns.Allow, Direction: hns.In, RuleType: hns.Switch, Priority: 101, LocalAddresses: "s"}.Policy(),
		hns.MakePolicy(hns.TypeSDNRoute, hns.SDNRoute{DestinationPrefix: "fd00:3::1/128", NeedEncap: true}),
		hns.MakePolicy(hns.TypeOutBoundNAT, hns.OutBoundNAT{Exceptions: []string{"10.0.0.0/8", "fd00:4::/64"}}),
	}
	e, err := f.CreateEndpoint(ctx, hns.Endpoint{Name: "e", HostComputeNetwork: n.ID, IPConfigurations: []hns.IPConfig{{IPAddress: "fd00::5"}}, Policies: policies})
	if err != nil {
		t.Fatal(err)
	}
	shown := fmt.Sprintf("%v %s", n, e.Policies)
	for range 2 {
		for _, text := range []string{"FD00:0000:0000:0000:0000:0000:0000:0000/64", "0000:0000:0000:0000:0000:0000:0000:0000/0", "10.0.0.1/32,FD00:0002:0000:0000:0000:0000:0000:0000/64",
			`"s"`, `"FD00:0003:0000:0000:0000:0000:0000:0001"`, "10.0.0.0/8", "FD00:0004"} {
			if !strings.Contains(shown, text) {
				t.Errorf("%s is not in %s", text, shown)
			}
		}
		if got := e.IPConfigurations[0].IPAddress; got != "FD00:0000:0000:0000:0000:0000:0000:0005" {
			t.Errorf("the endpoint has %s", got)
		}
		if e, err = f.ModifyEndpoint(ctx, e.ID, hns.Update, e.Policies...); err != nil {
			t.Fatal(err)
		}
		shown = fmt.Sprintf("%v %s", n, e.Policies)
	}
	if _, err := f.ModifyEndpoint(ctx, e.ID, hns.Update, policies...); err != nil {
		t.Fatal(err)
	}
	if text := f.Dump(); !strings.Contains(text, "remote=10.0.0.1,fd00:2::/64") {
		t.Errorf("it stores\n%s", text)
	}
}
