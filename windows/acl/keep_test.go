// SPDX-License-Identifier: Apache-2.0

package acl_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// plain returns a table with one verdict for every flow of a direction.
func plain(id byte, in, out model.Verdict) *model.Table {
	row := func(v model.Verdict) *model.Row { return &model.Row{Cells: []model.Decision{{Verdict: v}}} }
	return &model.Table{ID: model.TableID{id}, Sides: [2]model.Side{{Default: row(in)}, {Default: row(out)}}}
}

// TestKeepJudgesEveryTable gives endpoints of different tables the same list, which is correct for
// one of the tables. Only the endpoints of that table may keep it, in any order of evaluation.
func TestKeepJudgesEveryTable(t *testing.T) {
	open, shut := plain(1, model.Allow, model.Allow), plain(2, model.Deny, model.Deny)
	for name, tables := range map[string]map[model.EndpointID]*model.Table{
		"right first": {"a:eth0": open, "b:eth0": shut, "c:eth0": open},
		"wrong first": {"a:eth0": shut, "b:eth0": open, "c:eth0": shut},
	} {
		state := &model.State{Policy: model.PolicyState{Endpoints: make(map[model.EndpointID]model.EndpointState),
			Tables: map[model.TableID]*model.Table{open.ID: open, shut.ID: shut}}}
		for id, table := range tables {
			state.Policy.Endpoints[id] = model.EndpointState{Table: table.ID}
		}
		for _, profile := range []hns.Version{hns.Server2019, hns.Server2022} {
			o := options(profile)
			lowering := acl.Lower(state, o, "")
			for _, own := range []*model.Table{open, shut} {
				have := &acl.Ruleset{Lists: make(map[model.EndpointID][]hns.ACL)}
				for id := range tables {
					have.Lists[id] = longWinded(own)
				}
				kept := lowering.Keep(have)
				for id, table := range tables {
					if keeps := slices.Equal(kept.Lists[id], have.Lists[id]); keeps != (table == own) {
						t.Errorf("%s, hns %s: %s is under %s and keeps the list of %s: %t", name, profile, id, table.ID, own.ID, keeps)
					}
					if err := acl.Check(state, id, o, kept, hns.Readings()...); err != nil {
						t.Errorf("%s, hns %s: %v", name, profile, err)
					}
				}
			}
		}
	}
}

// longWinded is a correct list for a plain table that Lower does not write, because it has
// redundant rules.
func longWinded(t *model.Table) []hns.ACL {
	action := func(d model.Direction) hns.Action {
		if t.Sides[d].Default.Cell(0).Verdict == model.Allow {
			return hns.Allow
		}
		return hns.Block
	}
	in, out := action(model.Ingress), action(model.Egress)
	return []hns.ACL{
		{ID: "in tcp", Protocols: "6", Action: in, Direction: hns.In, RuleType: hns.Switch, Priority: 1000},
		{ID: "in", Protocols: "256", Action: in, Direction: hns.In, RuleType: hns.Switch, Priority: 1001},
		{ID: "out", Protocols: "256", Action: out, Direction: hns.Out, RuleType: hns.Switch, Priority: 1002},
		{ID: "in host", Protocols: "256", Action: hns.Allow, Direction: hns.In, RuleType: hns.Host},
		{ID: "out host", Protocols: "256", Action: hns.Allow, Direction: hns.Out, RuleType: hns.Host},
	}
}

// TestKeepRefuses damages a correct list in force. Every damaged list must be written again: it is
// wrong, or depends on undocumented behaviour of HNS.
func TestKeepRefuses(t *testing.T) {
	table := plain(1, model.Allow, model.Deny)
	state := &model.State{Policy: model.PolicyState{Endpoints: map[model.EndpointID]model.EndpointState{"a:eth0": {Table: table.ID}},
		Tables: map[model.TableID]*model.Table{table.ID: table}}}
	lowering := acl.Lower(state, options(hns.Server2022), "")
	keeps := func(list []hns.ACL) bool {
		kept := lowering.Keep(&acl.Ruleset{Lists: map[model.EndpointID][]hns.ACL{"a:eth0": list}})
		return slices.Equal(kept.Lists["a:eth0"], list)
	}
	if good := longWinded(table); !keeps(good) || !acl.WellFormed(good) {
		t.Fatal("a list that is right is not kept: the test shows nothing")
	}
	const inTCP, in, out, inHost, outHost = 0, 1, 2, 3, 4
	for name, damage := range map[string]func(list []hns.ACL) []hns.ACL{
		"no list at all":                 func([]hns.ACL) []hns.ACL { return nil },
		"no Host rule in":                func(l []hns.ACL) []hns.ACL { return slices.Delete(l, inHost, inHost+1) },
		"no Host rule out":               func(l []hns.ACL) []hns.ACL { return slices.Delete(l, outHost, outHost+1) },
		"no Host rules":                  func(l []hns.ACL) []hns.ACL { return l[:inHost] },
		"a Host rule that blocks":        func(l []hns.ACL) []hns.ACL { l[inHost].Action = hns.Block; return l },
		"a Host rule for one protocol":   func(l []hns.ACL) []hns.ACL { l[outHost].Protocols = "6"; return l },
		"a Host rule for one address":    func(l []hns.ACL) []hns.ACL { l[inHost].RemoteAddresses = "10.0.0.1"; return l },
		"both Host rules in one way":     func(l []hns.ACL) []hns.ACL { l[outHost].Direction = hns.In; return l },
		"no end in":                      func(l []hns.ACL) []hns.ACL { return slices.Delete(l, in, in+1) },
		"no end out":                     func(l []hns.ACL) []hns.ACL { return slices.Delete(l, out, out+1) },
		"an end for one protocol":        func(l []hns.ACL) []hns.ACL { l[in].Protocols = "17"; return l },
		"an end for IPv4 only":           func(l []hns.ACL) []hns.ACL { l[out].RemoteAddresses = "0.0.0.0/0"; return l },
		"two rules of one priority":      func(l []hns.ACL) []hns.ACL { l[inTCP].Priority = l[out].Priority; return l },
		"the other verdict":              func(l []hns.ACL) []hns.ACL { l[out].Action = hns.Allow; return l },
		"the other direction":            func(l []hns.ACL) []hns.ACL { l[in].Direction, l[out].Direction = hns.Out, hns.In; return l },
		"an unknown set":                 func(l []hns.ACL) []hns.ACL { l[inTCP].LocalAddresses = "azure-1"; return l },
		"an address that cannot be read": func(l []hns.ACL) []hns.ACL { l[inTCP].RemoteAddresses = "10.0.0.0/33"; return l },
		"an unknown rule type":           func(l []hns.ACL) []hns.ACL { l[inTCP].RuleType = "Tier"; return l },
		"another program's source ports": func(l []hns.ACL) []hns.ACL {
			return append(l, hns.ACL{Protocols: "6,17", RemotePorts: "1-65535", Action: hns.Block, Direction: hns.In, RuleType: hns.Switch, Priority: 950})
		},
		"source ports out": func(l []hns.ACL) []hns.ACL {
			return append(l, hns.ACL{Protocols: "6,17", LocalPorts: "1-65535", Action: hns.Allow, Direction: hns.Out, RuleType: hns.Switch, Priority: 950})
		},
		"the pod's address in": func(l []hns.ACL) []hns.ACL {
			return append(l, hns.ACL{LocalAddresses: "10.0.1.7", Action: hns.Block, Direction: hns.In, RuleType: hns.Switch, Priority: 950})
		},
		"the pod's address out": func(l []hns.ACL) []hns.ACL {
			return append(l, hns.ACL{LocalAddresses: "10.0.1.7/32", Action: hns.Allow, Direction: hns.Out, RuleType: hns.Switch, Priority: 950})
		},
		"a set of destinations in": func(l []hns.ACL) []hns.ACL {
			return append(l, hns.ACL{RemoteAddresses: "isthmus-0123456789abcdef-v4", Action: hns.Block, Direction: hns.In,
				RuleType: hns.Switch, Priority: 950})
		},
		"a set of sources out": func(l []hns.ACL) []hns.ACL {
			return append(l, hns.ACL{LocalAddresses: "isthmus-0123456789abcdef-v4", Action: hns.Allow, Direction: hns.Out,
				RuleType: hns.Switch, Priority: 950})
		},
		"a priority that HNS does not do": func(l []hns.ACL) []hns.ACL { l[inTCP].Priority = 99; return l },
	} {
		if list := damage(longWinded(table)); keeps(list) {
			t.Errorf("%s: the list stays in force", name)
		}
	}
}

// TestTwoHostRules: a further Host rule may decide before that of Isthmus, whatever their order in the list.
func TestTwoHostRules(t *testing.T) {
	list := longWinded(plain(1, model.Allow, model.Deny))
	block := hns.ACL{Protocols: "256", Action: hns.Block, Direction: hns.In, RuleType: hns.Host, Priority: 100}
	if further := slices.Insert(slices.Clone(list), 3, block); acl.WellFormed(further) || acl.WellFormed(append(list, block)) {
		t.Error("a further Host rule does not matter")
	}
}

// TestKeepWithSets is TestKeepJudgesEveryTable for a list with a set: its members
// follow from the table of the endpoint.
func TestKeepWithSets(t *testing.T) {
	peer, other := netip.MustParseAddr("10.0.3.3"), netip.MustParseAddr("10.0.3.4")
	allowing := func(id byte, class model.PeerClass) *model.Table {
		t := plain(id, model.Deny, model.Deny)
		row := &model.Row{Cells: []model.Decision{{Verdict: model.Allow, Cause: &model.Cause{Reason: model.ReasonRule, Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "x", Name: "p"}}}}}
		t.Sides[model.Ingress].Rows = immutable.MakeMap(map[model.PeerClass]*model.Row{class: row})
		return t
	}
	first, second := allowing(1, 1), allowing(2, 2)
	state := &model.State{
		Policy: model.PolicyState{Endpoints: map[model.EndpointID]model.EndpointState{"a:eth0": {Table: first.ID}, "b:eth0": {Table: second.ID}},
			Tables:    map[model.TableID]*model.Table{first.ID: first, second.ID: second},
			Addresses: immutable.MakeMap(map[netip.Addr]model.PeerClass{peer: 1, other: 2})},
	}
	o := options(hns.Server2022)
	one := *state
	one.Policy.Endpoints = map[model.EndpointID]model.EndpointState{"a:eth0": {Table: first.ID}}
	have := acl.Lower(&one, o, "").Ruleset
	have.Lists["b:eth0"] = have.Lists["a:eth0"] // for which the list is wrong
	kept := acl.Lower(state, o, "").Keep(&have)
	for id, want := range map[model.EndpointID]netip.Addr{"a:eth0": peer, "b:eth0": other} {
		if err := acl.Check(state, id, o, kept, hns.Readings()...); err != nil {
			t.Errorf("%s, which %s may reach: %v\n%s", id, want, err, hns.FormatACLs("", kept.Lists[id]))
		}
	}
}

// TestNodeRuleIsForIngress checks that the node reaches its pods under every policy, but that pods
// do not always reach the node. The list has egress rules for the node's address like those for any
// other address.
func TestNodeRuleIsForIngress(t *testing.T) {
	node := netip.MustParseAddr("192.168.0.1")
	allow := &model.Row{Cells: []model.Decision{{Verdict: model.Allow}}}
	for name, out := range map[string]*model.Row{"egress to the node is allowed": allow, "egress to the node is denied": {}} {
		table := plain(1, model.Deny, model.Deny)
		if name == "egress to the node is denied" {
			table.Sides[model.Egress].Default = allow
		}
		table.Sides[model.Ingress].Rows = immutable.MakeMap(map[model.PeerClass]*model.Row{1: allow})
		table.Sides[model.Egress].Rows = immutable.MakeMap(map[model.PeerClass]*model.Row{1: out})
		state := &model.State{Policy: model.PolicyState{Endpoints: map[model.EndpointID]model.EndpointState{"a:eth0": {Table: table.ID}},
			Tables: map[model.TableID]*model.Table{table.ID: table}, Addresses: immutable.MakeMap(map[netip.Addr]model.PeerClass{node: 1}),
			PeerClasses: []model.PeerClassInfo{{}, {Class: 1, Kind: model.KindThisNode}}}}
		for _, profile := range []hns.Version{hns.Server2019, hns.Server2022} {
			o := options(profile)
			l := acl.Lower(state, o, "")
			if err := acl.Check(state, "a:eth0", o, &l.Ruleset, hns.Readings()...); err != nil {
				t.Errorf("%s, hns %s: %v\n%s", name, profile, err, hns.FormatACLs("", l.Lists["a:eth0"]))
			}
		}
	}
}
