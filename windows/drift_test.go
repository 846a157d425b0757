// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// drifts are changes of ACLs and sets by another component.
func drifts(t *testing.T, n *node, first, second dataplane.EndpointSpec, network string, set hns.SetPolicy) map[string]func() error {
	return map[string]func() error{
		"ACLs": func() error {
			_, err := n.fake.ModifyEndpoint(ctx, n.hnsID(first.ID), hns.Update, openACLs()[0].Policy())
			return err
		},
		"no ACLs at all": func() error { // HNS treats that as an Allow rule
			n.fake.UpdateReplacesAll = true
			defer func() { n.fake.UpdateReplacesAll = false }()
			id := n.hnsID(first.ID)
			list, _ := n.fake.Endpoints(ctx, network)
			e := list[slices.IndexFunc(list, func(e hns.Endpoint) bool { return e.ID == id })]
			_, err := n.fake.ModifyEndpoint(ctx, id, hns.Update, slices.DeleteFunc(e.Policies, func(p hns.Policy) bool { return p.Is(hns.TypeACL) })...)
			if !n.passes(first.ID, "10.0.3.9") {
				t.Error("an endpoint without ACLs is not open: the case shows nothing")
			}
			return err
		},
		"one ACL more": func() error {
			_, err := n.fake.ModifyEndpoint(ctx, n.hnsID(first.ID), hns.Add, hns.ACL{Action: hns.Allow, Direction: hns.In, RuleType: hns.Switch, Priority: 200}.Policy())
			return err
		},
		"one ACL more for the pod's address": func() error {
			own := hns.ACL{Action: hns.Allow, Direction: hns.In, RuleType: hns.Switch, Priority: 950, LocalAddresses: first.IPs[0].String()}
			_, err := n.fake.ModifyEndpoint(ctx, n.hnsID(first.ID), hns.Add, own.Policy())
			return err
		},
		"one ACL more for source ports": func() error {
			ports := hns.ACL{Action: hns.Allow, Direction: hns.In, RuleType: hns.Switch, Priority: 950, Protocols: "6,17", RemotePorts: "1-65535"}
			_, err := n.fake.ModifyEndpoint(ctx, n.hnsID(first.ID), hns.Add, ports.Policy())
			return err
		},
		"an ACL for one port of schema 1": func() error { return n.narrow(first.ID) },
		"a member more": func() error {
			set.Values = "10.0.3.3,10.0.3.9"
			_, err := n.fake.ModifyNetwork(ctx, network, hns.Update, set.Policy())
			return err
		},
		"no members": func() error {
			set.Values = ""
			_, err := n.fake.ModifyNetwork(ctx, network, hns.Update, set.Policy())
			return err
		},
		"an empty set": func() error { // although it should be empty
			n.apply(both(first, second))
			set.Values = ""
			if _, err := n.fake.ModifyNetwork(ctx, network, hns.Update, set.Policy()); err != nil {
				return err
			}
			n.apply(both(first, second))
			if n.passes(first.ID, "10.0.3.9") || strings.Contains(n.fake.Dump(), `"Values":""`) {
				t.Errorf("an empty set was left:\n%s", n.fake.Dump())
			}
			return nil
		},
		"a prefix in the set": func() error {
			set.Values = "10.0.3.3,10.0.0.0/8"
			_, err := n.fake.ModifyNetwork(ctx, network, hns.Update, set.Policy())
			return err
		},
		"an unused set of ours": func() error {
			stale := set
			stale.ID = "isthmus-0123456789abcdef-v4"
			_, err := n.fake.ModifyNetwork(ctx, network, hns.Add, stale.Policy())
			return err
		},
	}
}

// narrow limits the rule that blocks ingress to one port, by a member of schema 1.
func (n *node) narrow(id model.EndpointID) error {
	n.t.Helper()
	e := n.stored(id)
	e.Policies = slices.DeleteFunc(e.Policies, func(p hns.Policy) bool { return !p.Is(hns.TypeACL) })
	for i, p := range e.Policies {
		var settings map[string]any
		if err := p.Decode(&settings); err != nil {
			return err
		}
		if settings["Action"] == "Block" && settings["Direction"] == "In" {
			settings["InternalPort"] = 8080
			e.Policies[i] = hns.MakePolicy(hns.TypeACL, settings)
		}
	}
	_, err := n.fake.ModifyEndpoint(ctx, e.ID, hns.Update, e.Policies...)
	return err
}

// TestDriftIsRepaired checks that the next Apply repairs changes by other processes in HNS.
func TestDriftIsRepaired(t *testing.T) {
	n, first, second := two(t, hns.Server2022, bridgeConfig())
	state := both(first, second, "10.0.3.3")
	n.apply(state)
	good := n.fake.Dump()
	networks, _ := n.fake.Networks(ctx)
	sets, _ := networks[0].Sets()
	if len(sets) != 1 {
		t.Fatalf("%d sets", len(sets))
	}
	set := sets[0]
	for name, damage := range drifts(t, n, first, second, networks[0].ID, set) {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		if found, err := n.backend.Audit(ctx, state); err != nil || len(found) == 0 && name != "an empty set" {
			t.Errorf("%s: audit finds %v, %v", name, found, err)
		}
		n.apply(state)
		if found, err := n.backend.Audit(ctx, state); err != nil || len(found) > 0 {
			t.Errorf("%s: after repair audit finds %v, %v", name, found, err)
		}
		if n.fake.Dump() != good {
			t.Errorf("%s: not put right:\n%s\nwant\n%s", name, n.fake.Dump(), good)
		}
	}
	foreign := set
	foreign.ID = "azure-npm-1"
	if _, err := n.fake.ModifyNetwork(ctx, networks[0].ID, hns.Add, foreign.Policy()); err != nil {
		t.Fatal(err)
	}
	n.apply(state)
	if !strings.Contains(n.fake.Dump(), "azure-npm-1") {
		t.Error("a set of another component was removed")
	}
}

// TestAuditNamesWhatIsOpen checks which differences an audit calls open: those that let packets pass that the State
// denies, or could, as an empty set does that HNS takes for any address. One that only denies more is not, nor is a
// set that no list refers to.
func TestAuditNamesWhatIsOpen(t *testing.T) {
	n, first, second := two(t, hns.Server2022, bridgeConfig())
	state := both(first, second, "10.0.3.3")
	n.apply(state)
	networks, _ := n.fake.Networks(ctx)
	sets, _ := networks[0].Sets()
	if len(sets) != 1 {
		t.Fatalf("%d sets", len(sets))
	}
	stored := n.stored(first.ID)
	policy, err := stored.ACLs()
	if err != nil {
		t.Fatal(err)
	}
	harmless := map[string]bool{"an empty set": true, "an unused set of ours": true, "everything denied": true, "a Block more": true}
	changes := drifts(t, n, first, second, networks[0].ID, sets[0])
	changes["everything denied"] = func() error { n.changeACLs(n.name(first.ID), acl.DenyAll()...); return nil }
	changes["a Block more"] = func() error {
		block := hns.ACL{Action: hns.Block, Direction: hns.In, RuleType: hns.Switch, Priority: 950, Protocols: "6", LocalPorts: "80"}
		n.changeACLs(n.name(first.ID), append(slices.Clip(policy), block)...)
		return nil
	}
	changes["everything denied behind an Allow"] = func() error {
		allow := hns.ACL{Action: hns.Allow, Direction: hns.In, RuleType: hns.Switch, Priority: 200}
		n.changeACLs(n.name(first.ID), append(acl.DenyAll(), allow)...)
		return nil
	}
	for name, change := range changes {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		found, err := n.backend.Audit(ctx, state)
		if err != nil {
			t.Fatal(err)
		}
		if open := slices.ContainsFunc(found, func(d dataplane.Drift) bool { return d.Open }); open == harmless[name] || len(found) == 0 && name != "an empty set" {
			t.Errorf("%s: open %t; %+v", name, open, found)
		}
		n.apply(state)
	}
}

// twice is an HNS that lists a further set.
type twice struct {
	*hnstest.Fake
	more hns.Policy
}

func (c twice) Networks(ctx context.Context) ([]hns.Network, error) {
	list, err := c.Fake.Networks(ctx)
	if err == nil {
		list[0].Policies = append(slices.Clip(list[0].Policies), c.more)
	}
	return list, err
}

// TestSetTwice checks that an audit calls a set open that HNS lists twice, whichever of the two is right: what ACLs do with it is not
// known.
func TestSetTwice(t *testing.T) {
	n, first, second := two(t, hns.Server2022, bridgeConfig())
	state := both(first, second, "10.0.3.3")
	n.apply(state)
	set := n.firstSet(state)
	for _, values := range []string{set.Values, "10.0.3.3,10.0.3.9"} {
		set.Values = values
		b, err := windows.New(ctx, n.config, twice{n.fake, set.Policy()}, discard)
		if err != nil {
			t.Fatal(err)
		}
		found, err := b.Audit(ctx, state)
		if err != nil || !slices.ContainsFunc(found, func(d dataplane.Drift) bool { return d.Object == "set" && d.Open }) {
			t.Errorf("%s: audit finds %v, %v", values, found, err)
		}
	}
}
