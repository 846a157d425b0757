// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// sctpState allows a peer to reach TCP 80 and SCTP 80.
func sctpState(spec dataplane.EndpointSpec, peer string) *model.State {
	s := peerState(spec, peer)
	s.Policy.Ports = append(s.Policy.Ports, model.PortRange{Protocol: model.SCTP, First: 80, Last: 80, Class: 1})
	return s
}

// TestHNSWithoutSCTP checks an HNS that refuses lists with ACLs for SCTP. The pod gets the rest of
// its policy. SCTP is denied and reported, also by the next agent.
func TestHNSWithoutSCTP(t *testing.T) {
	for v, code := range map[hns.Version]uint32{hns.Server2019: hns.CodeInvalidPolicy, hns.Server2022: hns.CodeInvalidArgument} {
		n := newNode(t, v, bridgeConfig())
		n.fake.SetQuirks(hnstest.Quirks{NoSCTP: code})
		spec := n.spec("c1", "10.0.1.7")
		n.add(spec)
		state := sctpState(spec, "10.0.3.3")
		for range 2 {
			unsupported, err := n.backend.Apply(ctx, state)
			if err != nil {
				t.Fatalf("hns %s: %v", v, err)
			}
			if len(unsupported) != 1 || unsupported[0].Construct != "SCTP" || unsupported[0].Effect != model.OverBlocks || unsupported[0].Policy.Name != spec.Pod.Name {
				t.Errorf("hns %s: reported %v", v, unsupported)
			}
			peer := netip.MustParseAddr("10.0.3.3")
			if !n.passes(spec.ID, "10.0.3.3") || n.passes(spec.ID, "10.0.3.4") || n.send(spec.ID, model.Ingress, peer, model.SCTP, 80, hns.Reading{}) {
				t.Errorf("hns %s: TCP of the peer passes %t, of another %t; in force:\n%s", v, n.passes(spec.ID, "10.0.3.3"), n.passes(spec.ID, "10.0.3.4"), n.fake.Dump())
			}
			if found, err := n.backend.Audit(ctx, state); err != nil || len(found) > 0 {
				t.Errorf("hns %s: audit finds %v, %v", v, found, err)
			}
			n.start()
		}
	}
}

// TestRefusalForAnotherReason checks that a list that is refused even without SCTP is an error, and
// that other pods keep SCTP.
func TestRefusalForAnotherReason(t *testing.T) {
	n, first, second := two(t, hns.Server2022, bridgeConfig())
	bad := n.hnsID(first.ID)
	n.failing(func(op, id string) bool { return op == "ModifyEndpoint" && id == bad }, hns.CodeInvalidPolicy)
	state := both(first, second, "10.0.3.3")
	state.Policy.Ports = append(state.Policy.Ports, model.PortRange{Protocol: model.SCTP, First: 80, Last: 80, Class: 1})
	if _, err := n.backend.Apply(ctx, state); !dataplane.Concerns(err, first.ID) || dataplane.Concerns(err, second.ID) {
		t.Fatalf("error %v", err)
	}
	other := n.hnsID(second.ID)
	writes := 0
	n.fake.Before(func(op, id string) error {
		if op == "ModifyEndpoint" && id == other {
			writes++
		}
		if op == "ModifyEndpoint" && id == bad {
			return hns.NewError(op, hns.CodeInvalidPolicy, "")
		}
		return nil
	})
	for range 3 { // at most one write restores SCTP
		if _, err := n.backend.Apply(ctx, state); !dataplane.Concerns(err, first.ID) || dataplane.Concerns(err, second.ID) {
			t.Fatalf("error %v", err)
		}
	}
	if writes > 1 {
		t.Errorf("the list of %s was written %d times while that of %s is refused", second.ID, writes, first.ID)
	}
	if !n.send(second.ID, model.Ingress, netip.MustParseAddr("10.0.3.3"), model.SCTP, 80, hns.Reading{}) {
		t.Errorf("SCTP of %s is denied while the list of %s is refused for another reason", second.ID, first.ID)
	}
	n.fake.Before(nil)
	n.apply(state)
	for _, id := range []model.EndpointID{first.ID, second.ID} {
		if !n.send(id, model.Ingress, netip.MustParseAddr("10.0.3.3"), model.SCTP, 80, hns.Reading{}) {
			t.Errorf("SCTP of %s is denied on an HNS that has nothing against it", id)
		}
	}
}

// TestErrorSaysNothingAboutSCTP checks that a write of a list fails once, by a code that does not blame the list. That is
// an error, and the next Apply writes the list with SCTP.
func TestErrorSaysNothingAboutSCTP(t *testing.T) {
	for _, code := range []uint32{hns.CodeUnexpected, hns.CodeAccessDenied, hns.CodeAdapterNotFound, 0x803B00FF, 0x8007000E} {
		n := newNode(t, hns.Server2022, bridgeConfig())
		spec := n.spec("c1", "10.0.1.7")
		n.add(spec)
		failed := false
		n.fake.Before(func(op, _ string) error {
			if op == "ModifyEndpoint" && !failed {
				failed = true
				return hns.NewError(op, code, "injected")
			}
			return nil
		})
		state := sctpState(spec, "10.0.3.3")
		if unsupported, err := n.backend.Apply(ctx, state); !dataplane.Concerns(err, spec.ID) || hns.Code(err) != code || len(unsupported) > 0 {
			t.Errorf("code %#x: unsupported %v, %v", code, unsupported, err)
		}
		n.apply(state)
		if !n.send(spec.ID, model.Ingress, netip.MustParseAddr("10.0.3.3"), model.SCTP, 80, hns.Reading{}) {
			t.Errorf("code %#x: SCTP is denied:\n%s", code, n.fake.Dump())
		}
	}
}

// TestSetsAreTurnedOff restarts an agent that wrote sets with sets disabled: the remedy if a node
// does not enforce sets. Lists and sets must be replaced.
func TestSetsAreTurnedOff(t *testing.T) {
	n, first, second := two(t, hns.Server2022, bridgeConfig())
	state := both(first, second, "10.0.3.3", "10.0.3.4")
	n.apply(state)
	if !strings.Contains(n.fake.Dump(), "isthmus-") {
		t.Fatalf("no set is in use: the test shows nothing\n%s", n.fake.Dump())
	}
	n.config.Sets = windows.SetsOff
	n.start()
	if found, err := n.backend.Audit(ctx, state); err != nil || len(found) == 0 {
		t.Errorf("audit finds %v, %v", found, err)
	}
	n.apply(state)
	networks, _ := n.fake.Networks(ctx)
	list, _ := n.fake.Endpoints(ctx, networks[0].ID)
	for _, e := range list {
		acls, err := e.ACLs()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range acls {
			if acl.OwnSet(a.LocalAddresses) || acl.OwnSet(a.RemoteAddresses) {
				t.Errorf("%s still refers to a set: %+v", e.Name, a)
			}
		}
	}
	if sets, _ := networks[0].Sets(); len(sets) > 0 {
		t.Errorf("sets are left: %v", sets)
	}
	if !n.passes(first.ID, "10.0.3.3") || n.passes(first.ID, "10.0.3.5") {
		t.Errorf("in force:\n%s", n.fake.Dump())
	}
}

// TestWhereSetsAreUsed checks that overlay networks get no sets by default: no product is known to
// use them there.
func TestWhereSetsAreUsed(t *testing.T) {
	for _, c := range []struct {
		config windows.Config
		use    windows.SetUse
		v      hns.Version
		want   bool
	}{
		{bridgeConfig(), "", hns.Server2022, true}, {bridgeConfig(), windows.SetsAuto, hns.Server2019, false}, {bridgeConfig(), windows.SetsOff, hns.Server2022, false},
		{overlayConfig(), "", hns.Server2022, false}, {overlayConfig(), windows.SetsOn, hns.Server2022, true}, {overlayConfig(), windows.SetsOn, hns.Server2019, false},
	} {
		c.config.Sets = c.use
		n := newNode(t, c.v, c.config)
		spec := n.spec("c1", "10.0.1.7")
		n.add(spec)
		n.apply(peerState(spec, "10.0.3.3"))
		networks, _ := n.fake.Networks(ctx)
		if sets, _ := networks[0].Sets(); len(sets) > 0 != c.want || !n.passes(spec.ID, "10.0.3.3") {
			t.Errorf("%s, sets %q, hns %s: %d sets", c.config.Mode, c.use, c.v, len(sets))
		}
	}
	bad := bridgeConfig()
	bad.Sets = "some"
	if _, err := windows.New(ctx, bad, hnstest.NewFake(hns.Server2022), discard); err == nil {
		t.Error(`sets "some" was taken`)
	}
}
