// SPDX-License-Identifier: Apache-2.0

package foreign_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
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
