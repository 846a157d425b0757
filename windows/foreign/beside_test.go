// SPDX-License-Identifier: Apache-2.0

package foreign_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/foreign"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// wantProblem checks that the only attachment is reported as not enforced with a text, or has no problem if that is empty.
func (n *node) wantProblem(what, text string) {
	n.t.Helper()
	list, err := n.backend.Endpoints(ctx)
	if err != nil || len(list) != 1 {
		n.t.Fatalf("%s: endpoints %+v, %v", what, list, err)
	}
	if found := strings.Join(list[0].Problems, "; "); text == "" && found != "" || !strings.Contains(found, text) || list[0].Unenforced != (text != "") {
		n.t.Errorf("%s: unenforced %t, problems %q, want %q", what, list[0].Unenforced, found, text)
	}
}

// TestFurtherEndpoint checks that a pod is reported whose namespace has an endpoint without policy, also one that was adopted.
func TestFurtherEndpoint(t *testing.T) {
	for _, adopted := range []bool{false, true} {
		n := newNode(t, hns.L2Bridge)
		ns := n.fake.AddNamespace()
		id := n.make("web", "10.1.0.5", ns, theirs()...)
		s := spec("web", "10.1.0.5", ns)
		if adopted {
			s.NetNS = dataplane.HandlePrefix + strings.ToLower(id)
		}
		n.add(s)
		n.apply(state(s))
		n.make("api", "10.1.0.6", n.fake.AddNamespace(), theirs()...)
		n.wantProblem("alone", "")
		further := n.make("second", "10.1.0.9", ns)
		n.unpoliced(spec("second", "10.1.0.9", ns))
		n.wantProblem("with another", "hns endpoint second of network azure")
		if err := n.fake.DeleteEndpoint(ctx, further); err != nil {
			t.Fatal(err)
		}
		n.wantProblem("alone again", "")
	}
}

// TestFurtherEndpointWithoutAddress: an endpoint that gets its addresses from a DHCP server counts too. It is none of a pod.
func TestFurtherEndpointWithoutAddress(t *testing.T) {
	n := newNode(t, hns.L2Bridge)
	s := n.chained("web", "10.1.0.5", theirs()...)
	n.apply(state(s))
	n.wantProblem("alone", "")
	lan, err := n.fake.CreateNetwork(ctx, hns.Network{Name: "lan", Type: hnstest.Transparent, SchemaVersion: hns.Schema2})
	if err != nil {
		t.Fatal(err)
	}
	e, err := n.fake.CreateEndpoint(ctx, hns.Endpoint{Name: "second", HostComputeNetwork: lan.ID, SchemaVersion: hns.Schema2})
	if err == nil {
		err = n.fake.AttachEndpoint(ctx, s.NetNS, e.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	n.wantProblem("with another", "hns endpoint second of network lan is in its namespace too, and not under policy")
	list, err := n.backend.Interfaces(ctx)
	if err != nil || len(list) != 1 || list[0].Name != "web" {
		t.Errorf("interfaces of pods %+v, %v", list, err)
	}
}

// TestTwoEndpointsOfOnePod checks that a pod is reported while two endpoints have its addresses in its namespace, because policy
// is then on neither for certain.
func TestTwoEndpointsOfOnePod(t *testing.T) {
	n := newNode(t, hns.L2Bridge)
	s := n.chained("web", "10.1.0.5", theirs()...)
	n.apply(state(s))
	subnet := hns.Subnet{IPAddressPrefix: "10.1.0.0/16", Routes: []hns.Route{{NextHop: "10.1.0.1", DestinationPrefix: "0.0.0.0/0"}}}
	other, err := n.fake.CreateNetwork(ctx, hns.Network{Name: "other", Type: hns.L2Bridge, SchemaVersion: hns.Schema2, Ipams: []hns.Ipam{{Type: "Static", Subnets: []hns.Subnet{subnet}}}})
	if err != nil {
		t.Fatal(err)
	}
	n.network = other.ID
	second := n.make("second", "10.1.0.5", s.NetNS)
	if _, err := n.backend.Idle(ctx); err != nil {
		t.Fatal(err)
	}
	n.wantProblem("two", "hns endpoints web and second have its addresses")
	if f := n.backend.Faults(); len(f) != 1 || !strings.Contains(f[0], "NOT enforced: hns endpoints web and second") {
		t.Errorf("faults %q", f)
	}
	if err := n.fake.DeleteEndpoint(ctx, second); err != nil {
		t.Fatal(err)
	}
	if _, err := n.backend.Idle(ctx); err != nil || len(n.backend.Faults()) > 0 {
		t.Errorf("%v, faults %q", err, n.backend.Faults())
	}
	n.wantProblem("one", "")
}

// TestNetworkACL checks that no pod starts on a network with ACLs of its own, and that running pods are reported: the order of
// those and of the ACLs of endpoints is not known.
func TestNetworkACL(t *testing.T) {
	n := newNodeOn(t, hns.Server2025, hns.L2Bridge)
	s := n.chained("web", "10.1.0.5", theirs()...)
	n.apply(state(s))
	p := acl("all", hns.In, hns.Allow, 100, "")
	p.Type = hns.TypeNetworkACL
	if _, err := n.fake.ModifyNetwork(ctx, n.network, hns.Add, p); err != nil {
		t.Fatal(err)
	}
	n.wantProblem("running", "hns network azure: it has a NetworkACL policy")
	late := spec("late", "10.1.0.6", n.fake.AddNamespace())
	n.make("late", "10.1.0.6", late.NetNS)
	if _, err := n.backend.AddEndpoint(ctx, late); !errors.Is(err, dataplane.ErrInterfaceKind) || !strings.Contains(err.Error(), "NetworkACL") {
		t.Errorf("added: %v", err)
	}
	if _, err := n.fake.ModifyNetwork(ctx, n.network, hns.Remove, p); err != nil {
		t.Fatal(err)
	}
	n.wantProblem("without it", "")
	n.add(late)
}

// forgetful is an HNS that keeps no Ids of ACLs.
type forgetful struct{ *hnstest.Fake }

func (f forgetful) ModifyEndpoint(ctx context.Context, id string, r hns.RequestType, policies ...hns.Policy) (hns.Endpoint, error) {
	var without []hns.Policy
	for _, p := range policies {
		var a hns.ACL
		if p.Is(hns.TypeACL) && p.Decode(&a) == nil {
			a.ID = ""
			p = a.Policy()
		}
		without = append(without, p)
	}
	return f.Fake.ModifyEndpoint(ctx, id, r, without...)
}

// TestForgottenIds checks an HNS that keeps no Ids of ACLs. ADD fails, and the endpoint is closed and reported. ACLs of earlier attempts
// look like those of others: TestTooManyOthers checks their bound.
func TestForgottenIds(t *testing.T) {
	n := newNode(t, hns.L2Bridge)
	b, err := foreign.New(ctx, foreign.Config{File: n.file}, forgetful{n.fake}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s := spec("web", "10.1.0.5", n.fake.AddNamespace())
	n.make("web", "10.1.0.5", s.NetNS, theirs()...)
	if _, err := b.AddEndpoint(ctx, s); err == nil || !strings.Contains(err.Error(), "stored") {
		t.Fatalf("ADD: %v", err)
	}
	for range 5 {
		if _, err := b.Idle(ctx); err == nil {
			t.Fatal("no error")
		}
	}
	if f := b.Faults(); len(f) != 1 || !strings.Contains(f[0], "NOT enforced") {
		t.Errorf("faults %q", f)
	}
	n.want(s, "")
}

// wantProblems checks that exactly these attachments are reported as not enforced, each with a text.
func (n *node) wantProblems(what string, want map[model.EndpointID]string) {
	n.t.Helper()
	list, err := n.backend.Endpoints(ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, i := range list {
		text, bad := want[i.ID]
		if found := strings.Join(i.Problems, "; "); i.Unenforced != bad || !bad && found != "" || !strings.Contains(found, text) {
			n.t.Errorf("%s: endpoint %s: unenforced %t, problems %q, want %q", what, i.ID, i.Unenforced, found, text)
		}
	}
}

// TestEndpointIsMoved moves the endpoint of a pod to the namespace of another one, which could then send by the policy of the first.
// Both are reported, and the endpoint denies everything, until it is back. It was chained or adopted.
func TestEndpointIsMoved(t *testing.T) {
	for _, adopted := range []bool{false, true} {
		n := newNode(t, hns.L2Bridge)
		web := spec("web", "10.1.0.5", n.fake.AddNamespace())
		home, id := web.NetNS, n.make("web", "10.1.0.5", web.NetNS, theirs()...)
		if adopted {
			web.NetNS = dataplane.HandlePrefix + strings.ToLower(id)
		}
		n.add(web)
		api := n.chained("api", "10.1.0.6", theirs()...)
		s := state(web, api)
		n.apply(s)
		n.wantProblems("in their places", nil)
		move := func(from, to string) {
			t.Helper()
			if err := n.fake.DetachEndpoint(ctx, from, id); err != nil {
				t.Fatal(err)
			}
			list, err := n.backend.Endpoints(ctx)
			if err != nil || slices.ContainsFunc(list, func(i dataplane.Installed) bool { return i.Unenforced }) {
				t.Errorf("detached: %+v, %v", list, err)
			}
			if err := n.fake.AttachEndpoint(ctx, to, id); err != nil {
				t.Fatal(err)
			}
			n.apply(s)
		}
		move(home, api.NetNS)
		want := map[model.EndpointID]string{api.ID: "hns endpoint web of network azure is in its namespace too, and under the policy of another pod"}
		if want[web.ID] = "hns endpoint web of network azure is not in its namespace any more"; adopted {
			want[web.ID] = "hns endpoint api of network azure is in its namespace too"
		}
		n.wantProblems("moved", want)
		if !adopted { // else where it belongs is not known
			n.want(web, "")
		}
		n.want(api, "in out")
		move(api.NetNS, home)
		n.wantProblems("back", nil)
		n.want(web, "in out")
	}
}

// TestEndpointHasAnotherAddress recreates the endpoint of a pod with another address. Packets pass there without policy, unless it is
// the same endpoint, which denies everything.
func TestEndpointHasAnotherAddress(t *testing.T) {
	for what, keepID := range map[string]bool{"hns endpoint web of network azure is in its namespace too, and not under policy": false,
		"hns endpoint web of network azure has the addresses [10.1.0.9], not [10.1.0.5]": true} {
		n := newNode(t, hns.L2Bridge)
		s := spec("web", "10.1.0.5", n.fake.AddNamespace())
		e := hns.Endpoint{Name: "web", HostComputeNetwork: n.network, SchemaVersion: hns.Schema2, IPConfigurations: []hns.IPConfig{{IPAddress: "10.1.0.9", PrefixLength: 16}}}
		id := n.make("web", "10.1.0.5", s.NetNS, theirs()...)
		if keepID {
			e.ID = id
		}
		n.add(s)
		n.apply(state(s))
		if err := n.fake.DeleteEndpoint(ctx, id); err != nil {
			t.Fatal(err)
		}
		n.apply(state(s))
		if list, err := n.backend.Endpoints(ctx); err != nil || len(list) != 1 || list[0].Unenforced || len(list[0].Problems) != 1 {
			t.Errorf("gone: %+v, %v", list, err)
		}
		made, err := n.fake.CreateEndpoint(ctx, e)
		if err == nil {
			err = n.fake.AttachEndpoint(ctx, s.NetNS, made.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		n.apply(state(s))
		if there := spec("web", "10.1.0.9", s.NetNS); keepID {
			n.want(there, "")
		} else {
			n.unpoliced(there)
		}
		n.wantProblems("another address", map[model.EndpointID]string{s.ID: what})
	}
}

// TestNarrowedACL checks that an own ACL is written again after another program limited it to one port, by a member of schema 1.
func TestNarrowedACL(t *testing.T) {
	n := newNode(t, hns.L2Bridge)
	s := n.chained("web", "10.1.0.5", theirs()...)
	n.apply(state(s))
	list, err := n.fake.Endpoints(ctx, n.network)
	if err != nil {
		t.Fatal(err)
	}
	policies := list[0].Policies
	for i, p := range policies {
		var settings map[string]any
		if p.Is(hns.TypeACL) && p.Decode(&settings) == nil && settings["Action"] == "Block" && settings["Direction"] == "In" {
			settings["ServiceName"] = "web"
			policies[i] = hns.MakePolicy(hns.TypeACL, settings)
		}
	}
	if _, err := n.fake.ModifyEndpoint(ctx, list[0].ID, hns.Update, policies...); err != nil {
		t.Fatal(err)
	}
	if list, err := n.backend.Endpoints(ctx); err != nil || len(list) != 1 || len(list[0].Problems) == 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := n.backend.Idle(ctx); err != nil {
		t.Fatal(err)
	}
	n.wantProblem("repaired", "")
	n.want(s, "in out")
	if strings.Contains(n.fake.Dump(), `"ServiceName":"web"`) {
		t.Errorf("the ACL is still there:\n%s", n.fake.Dump())
	}
}
