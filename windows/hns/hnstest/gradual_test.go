// SPDX-License-Identifier: Apache-2.0

package hnstest_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// TestGradual: an Update adds its ACLs one by one, and then removes the old ones from the last to the first. Policies
// of other types change at once.
func TestGradual(t *testing.T) {
	ctx := context.Background()
	f := hnstest.NewFake(hns.Server2022)
	acls := func(priorities ...int) (list []hns.Policy) {
		for _, p := range priorities {
			list = append(list, hns.ACL{ID: fmt.Sprint(p), Protocols: "6", Action: hns.Allow, Direction: hns.In, RuleType: hns.Switch, Priority: uint16(p), RemoteAddresses: "10.0.0.1,10.0.0.2"}.Policy())
		}
		return list
	}
	n, err := f.CreateNetwork(ctx, hns.Network{Name: "n", Type: hns.L2Bridge, Ipams: []hns.Ipam{{Type: "Static", Subnets: []hns.Subnet{{IPAddressPrefix: "10.0.1.0/24", Routes: []hns.Route{{NextHop: "10.0.1.1", DestinationPrefix: "0.0.0.0/0"}}}}}}, SchemaVersion: hns.Schema2})
	if err != nil {
		t.Fatal(err)
	}
	e, err := f.CreateEndpoint(ctx, hns.Endpoint{Name: "e", HostComputeNetwork: n.ID, SchemaVersion: hns.Schema2, Policies: acls(101, 102)})
	if err != nil {
		t.Fatal(err)
	}
	var steps []string
	f.Gradual = func(id string) {
		now, err := f.Endpoint(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		list, err := now.ACLs()
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, a := range list {
			ids = append(ids, a.ID)
		}
		slices.Sort(ids)
		steps = append(steps, strings.Join(ids, " "))
	}
	if _, err := f.ModifyEndpoint(ctx, e.ID, hns.Update, acls(201, 202)...); err != nil {
		t.Fatal(err)
	}
	want := []string{"101 102 201", "101 102 201 202", "101 201 202", "201 202"}
	if !slices.Equal(steps, want) {
		t.Errorf("steps %q, want %q", steps, want)
	}
	f.Gradual = func(id string) {
		if f.DeleteEndpoint(ctx, id) == nil {
			steps = append(steps, "deleted")
		}
	}
	if _, err := f.ModifyEndpoint(ctx, e.ID, hns.Update, acls(301)...); hns.Code(err) != hns.CodeEndpointNotFound {
		t.Errorf("an endpoint that is deleted meanwhile: %v", err)
	}
}

// TestReorder: answers have the opposite order, what is stored has not, and a shown policy can be removed.
func TestReorder(t *testing.T) {
	ctx := context.Background()
	f := hnstest.NewFake(hns.Server2022)
	f.Reorder = true
	n, err := f.CreateNetwork(ctx, hns.Network{Name: "n", Type: hns.L2Bridge, Ipams: []hns.Ipam{{Type: "Static", Subnets: []hns.Subnet{{IPAddressPrefix: "10.0.1.0/24", Routes: []hns.Route{{NextHop: "10.0.1.1", DestinationPrefix: "0.0.0.0/0"}}}}}}, SchemaVersion: hns.Schema2})
	if err != nil {
		t.Fatal(err)
	}
	set := hns.SetPolicy{ID: "s", Name: "s", PolicyType: hns.IPSet, Values: "10.0.0.1,10.0.0.2,10.0.0.3"}
	shown, err := f.ModifyNetwork(ctx, n.ID, hns.Add, set.Policy())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(shown.Policies, func(p hns.Policy) bool { return p.Is(hns.TypeSet) })
	if text := string(shown.Policies[i].Settings); !strings.Contains(text, "10.0.0.3,10.0.0.2,10.0.0.1") {
		t.Errorf("the set is shown as %s", text)
	}
	if held, err := shown.HoldsSet(set); err != nil || !held {
		t.Errorf("the set is not recognised: %t, %v", held, err)
	}
	other := set
	other.Values = "10.0.0.1,10.0.0.2,10.0.0.4"
	if held, err := shown.HoldsSet(other); err != nil || held {
		t.Errorf("another set is recognised: %t, %v", held, err)
	}
	if _, err := f.ModifyNetwork(ctx, n.ID, hns.Remove, shown.Policies[i]); err != nil {
		t.Errorf("remove the set as it was shown: %v", err)
	}
}
