// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// wantOpen checks that the only endpoint is reported as not enforced with a text, or has no problem if that is empty.
func (n *node) wantOpen(what, text string) {
	n.t.Helper()
	list, err := n.backend.Endpoints(ctx)
	if err != nil || len(list) != 1 {
		n.t.Fatalf("%s: endpoints %+v, %v", what, list, err)
	}
	if found := strings.Join(list[0].Problems, "; "); text == "" && found != "" || !strings.Contains(found, text) || list[0].Unenforced != (text != "") {
		n.t.Errorf("%s: unenforced %t, problems %q, want %q", what, list[0].Unenforced, found, text)
	}
}

// TestRulesOfUnknownOrder checks that an endpoint is reported while other programs have rules for it, or for its network, that may
// pass what its ACLs block.
func TestRulesOfUnknownOrder(t *testing.T) {
	n := newNode(t, hns.Server2025, bridgeConfig())
	spec := n.spec("c1", "10.0.1.7")
	n.add(spec)
	s := clusterState([]dataplane.EndpointSpec{spec})
	n.apply(s)
	n.wantOpen("alone", "")
	tier := hns.Policy{Type: hns.TypeTierACL, Settings: json.RawMessage(`{"Name":"x","Direction":"In","Order":1,"TierAclRules":[]}`)}
	network := hns.ACL{ID: "all", Action: hns.Allow, Direction: hns.In, RuleType: hns.Switch, Priority: 100}.Policy()
	network.Type = hns.TypeNetworkACL
	networks, err := n.fake.Networks(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, text string
		change     func(hns.RequestType) error
	}{
		{"TierAcl", "it has a TierAcl policy", func(r hns.RequestType) error {
			_, err := n.fake.ModifyEndpoint(ctx, n.hnsID(spec.ID), r, tier)
			return err
		}},
		{"NetworkACL", "hns network isthmus: it has a NetworkACL policy", func(r hns.RequestType) error {
			_, err := n.fake.ModifyNetwork(ctx, networks[0].ID, r, network)
			return err
		}},
	} {
		if err := c.change(hns.Add); err != nil {
			t.Fatal(c.name, err)
		}
		n.apply(s)
		n.wantOpen(c.name, c.text)
		if err := c.change(hns.Remove); err != nil {
			t.Fatal(c.name, err)
		}
		n.wantOpen("without "+c.name, "")
	}
}

// TestFurtherEndpointInNamespace checks that a pod is reported while its namespace has an endpoint that is not of Isthmus, on the
// network of Isthmus or on another. One that HNS no longer has does not count.
func TestFurtherEndpointInNamespace(t *testing.T) {
	n := newNode(t, hns.Server2022, bridgeConfig())
	spec := n.spec("c1", "10.0.1.7")
	n.add(spec)
	n.apply(clusterState([]dataplane.EndpointSpec{spec}))
	networks, err := n.fake.Networks(ctx)
	if err != nil {
		t.Fatal(err)
	}
	subnet := hns.Subnet{IPAddressPrefix: "10.9.0.0/16", Routes: []hns.Route{{NextHop: "10.9.0.1", DestinationPrefix: "0.0.0.0/0"}}}
	other, err := n.fake.CreateNetwork(ctx, hns.Network{Name: "other", Type: hns.L2Bridge, SchemaVersion: hns.Schema2, Ipams: []hns.Ipam{{Type: "Static", Subnets: []hns.Subnet{subnet}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ network, ip string }{{networks[0].ID, "10.0.1.77"}, {other.ID, "10.9.0.5"}} {
		n.wantOpen("alone", "")
		e, err := n.fake.CreateEndpoint(ctx, hns.Endpoint{Name: "second", HostComputeNetwork: c.network, SchemaVersion: hns.Schema2,
			IPConfigurations: []hns.IPConfig{{IPAddress: c.ip, PrefixLength: 16}}})
		if err == nil {
			err = n.fake.AttachEndpoint(ctx, spec.NetNS, e.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		n.wantOpen(c.ip, "hns endpoint "+strings.ToLower(e.ID)+" is in its namespace too, and not under policy")
		if err := n.fake.DeleteEndpoint(ctx, e.ID); err != nil {
			t.Fatal(err)
		}
	}
	n.wantOpen("alone again", "")
}

// TestNamespaceCannotBeRead: an HNS that does not show one namespace, whatever the reason, does not keep the problems of other pods.
func TestNamespaceCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := bridgeConfig()
		c.CallDeadline = 50 * time.Millisecond
		n, first, second := two(t, hns.Server2022, c)
		n.apply(both(first, second))
		n.failing(func(op, id string) bool { return op == "Namespace" && id == first.NetNS }, 0x803B0027) // its compartment is gone
		unreadable := func(what string) {
			t.Helper()
			list, err := n.backend.Endpoints(ctx)
			if err != nil || len(list) != 2 {
				t.Fatalf("%s: %+v, %v", what, list, err)
			}
			for _, i := range list {
				if bad := strings.HasPrefix(strings.Join(i.Problems, "; "), "its namespace cannot be read"); bad != (i.ID == first.ID) {
					t.Errorf("%s: %s: %q", what, i.ID, i.Problems)
				}
			}
		}
		unreadable("an error")
		gate := make(chan struct{})
		release := sync.OnceFunc(func() { close(gate) })
		defer release()
		n.fake.Before(func(op, id string) error {
			if op == "Namespace" && id == first.NetNS {
				<-gate
			}
			return nil
		})
		if _, err := n.backend.Endpoints(ctx); hns.Code(err) != hns.CodeTimeout {
			t.Errorf("no answer: %v", err)
		}
		unreadable("the call has not returned")
		release()
		n.fake.Before(nil)
		for end := time.Now().Add(10 * time.Second); n.hung() && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		n.wantProblems("in the end", nil)
	})
}

// hung reports whether a call about a namespace has not returned.
func (n *node) hung() bool {
	list, err := n.backend.Endpoints(ctx)
	return err != nil || slices.ContainsFunc(list, func(i dataplane.Installed) bool { return len(i.Problems) > 0 })
}
