// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// denying returns a State with a deny list.
func denying(s *model.State, texts ...string) *model.State {
	c := *s
	l := &model.DenyList{Name: "scanners"}
	for _, text := range texts {
		l.Entries = append(l.Entries, netip.MustParsePrefix(text))
	}
	c.Deny = model.MakeDenySet(immutable.MakeMap(map[string]*model.DenyList{l.Name: l}))
	return &c
}

// applyDenying applies a State whose deny list must be reported.
func (n *node) applyDenying(s *model.State) {
	n.t.Helper()
	unsupported, err := n.backend.Apply(ctx, s)
	if err != nil || len(unsupported) != 1 || unsupported[0].Policy.Kind != model.KindDenyList || unsupported[0].OS != model.Windows {
		n.t.Fatalf("reported %v, %v", unsupported, err)
	}
}

// TestDenyList checks that listed sources reach no pod, under every release and reading, whatever
// policy allows. The node itself reaches pods. Nothing is written twice, and the ACLs are removed
// with the object.
func TestDenyList(t *testing.T) {
	everyHNS(t, func(t *testing.T, n *node) {
		specs := []dataplane.EndpointSpec{n.spec("c1", "10.0.1.7"), n.spec("c2", "10.0.1.8")}
		for _, s := range specs {
			n.add(s)
		}
		open := clusterState(specs)
		open.Policy.Endpoints[specs[1].ID] = model.EndpointState{Pod: specs[1].Pod, IPs: specs[1].IPs} // it has no table
		open.Policy.Tables = peerState(specs[0], "10.0.3.3", "10.0.3.4").Policy.Tables
		open.Policy.Addresses = peerState(specs[0], "10.0.3.3", "10.0.3.4").Policy.Addresses
		check := func(s *model.State, denied ...string) {
			t.Helper()
			for _, reading := range []hns.Reading{{}, {Default: hns.PerDirection, Tie: hns.BlockFirst, Host: hns.HostClosed, Set: hns.EmptyMatchesAll}} {
				for _, remote := range []string{"10.0.3.3", "10.0.3.4", "192.168.0.1"} {
					want := !slices.Contains(denied, remote)
					if got := n.send(specs[0].ID, model.Ingress, netip.MustParseAddr(remote), model.TCP, 80, reading); got != want {
						t.Errorf("%s passes: %t, want %t (%s)\n%s", remote, got, want, reading, n.fake.Dump())
					}
				}
			}
			if !n.send(specs[0].ID, model.Egress, netip.MustParseAddr("10.0.3.3"), model.TCP, 80, hns.Reading{}) {
				t.Error("a listed address cannot be reached")
			}
			if drift, err := n.backend.Audit(ctx, s); err != nil || len(drift) > 0 {
				t.Errorf("audit: %v, %v", drift, err)
			}
		}
		n.apply(open)
		check(open)
		one := denying(open, "10.0.3.3/32", "192.168.0.0/24")
		n.applyDenying(one)
		check(one, "10.0.3.3")
		writes := n.count("ModifyEndpoint")
		n.start()
		n.applyDenying(one)
		check(one, "10.0.3.3")
		if n.count("ModifyEndpoint") != writes {
			t.Error("equal lists are written again")
		}
		both := denying(open, "10.0.3.0/24")
		n.applyDenying(both)
		check(both, "10.0.3.3", "10.0.3.4")
		if got := n.count("ModifyEndpoint") - writes; got != 1 {
			t.Errorf("%d writes for one pod under policy", got)
		}
		var c dataplane.Counters
		var err error
		if c, err = n.backend.Counters(ctx); err != nil || c.Deny.Entries != [2]int{1, 0} {
			t.Errorf("counted %+v, %v", c.Deny, err)
		}
		n.apply(open)
		check(open)
	})
}

// TestDenyListDrift checks repairs after another process removes the ACLs of a deny list, or puts
// an ACL before them.
func TestDenyListDrift(t *testing.T) {
	n := newNode(t, hns.Server2022, bridgeConfig())
	spec := n.spec("c1", "10.0.1.7")
	n.add(spec)
	s := denying(peerState(spec, "10.0.3.3"), "10.0.3.3/32")
	n.applyDenying(s)
	whole, err := func() ([]hns.ACL, error) { e := n.stored(spec.ID); return e.ACLs() }()
	if err != nil || whole[0].Priority != 100 {
		t.Fatalf("%v, %v", whole, err)
	}
	before := whole[0]
	before.Action, before.Priority = hns.Allow, 100
	whole[0].Priority = 101
	overruled := append([]hns.ACL{before}, whole...)
	for name, list := range map[string][]hns.ACL{"removed": whole[1:], "overruled": overruled} {
		n.changeACLs(n.name(spec.ID), list...)
		drift, err := n.backend.Audit(ctx, s)
		if err != nil || len(drift) != 1 || drift[0].Endpoint != spec.ID {
			t.Errorf("%s: audit %v, %v", name, drift, err)
		}
		n.applyDenying(s)
		if n.send(spec.ID, model.Ingress, netip.MustParseAddr("10.0.3.3"), model.TCP, 80, hns.Reading{}) {
			t.Errorf("%s: a listed source passes\n%s", name, n.fake.Dump())
		}
	}
}
