// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// The tables of rulesState by number.
const (
	closed   = 1 // denies all ingress
	allowing = 2 // allows peers of class 1
	blocking = 3 // denies peers of class 1, allows others
	barring  = 4 // allows peers of class 1, but not to TCP 80
)

// rulesState gives each endpoint one of the tables. The peers are of class 1.
func rulesState(tables map[byte][]dataplane.EndpointSpec, peers ...string) *model.State {
	row := func(id string, v model.Verdict, web ...model.Verdict) *model.Row {
		r := &model.Row{}
		for _, v := range slices.Concat([]model.Verdict{v}, web) {
			r.Cells = append(r.Cells, model.Decision{Verdict: v, Cause: &model.Cause{Reason: model.ReasonRule, Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "x", Name: id}}})
		}
		return r
	}
	one := func(r *model.Row) immutable.Map[model.PeerClass, *model.Row] {
		return immutable.MakeMap(map[model.PeerClass]*model.Row{1: r})
	}
	allow := model.Side{Default: row("open", model.Allow, model.Allow)}
	s := &model.State{Policy: model.PolicyState{Endpoints: make(map[model.EndpointID]model.EndpointState), PeerClasses: []model.PeerClassInfo{{}, {Class: 1}},
		Tables: map[model.TableID]*model.Table{
			{closed}:   {ID: model.TableID{closed}, Sides: [2]model.Side{{Default: row("none", model.Deny, model.Deny)}, allow}},
			{allowing}: {ID: model.TableID{allowing}, Sides: [2]model.Side{{Default: row("none", model.Deny, model.Deny), Rows: one(row("some", model.Allow, model.Allow))}, allow}},
			{blocking}: {ID: model.TableID{blocking}, Sides: [2]model.Side{{Default: row("all", model.Allow, model.Allow), Rows: one(row("but", model.Deny, model.Deny))}, allow}},
			{barring}:  {ID: model.TableID{barring}, Sides: [2]model.Side{{Default: row("none", model.Deny, model.Deny), Rows: one(row("not web", model.Allow, model.Deny))}, allow}},
		}}}
	s.Policy.Ports = []model.PortRange{{Protocol: model.TCP, First: 80, Last: 80, Class: 1}}
	s.Policy.PortClasses = []model.PortClassInfo{{}, {Class: 1}}
	for table, specs := range tables {
		for _, spec := range specs {
			s.Policy.Endpoints[spec.ID] = model.EndpointState{Pod: spec.Pod, IPs: spec.IPs, Table: model.TableID{table}}
		}
	}
	classes := make(map[netip.Addr]model.PeerClass)
	for _, p := range peers {
		classes[netip.MustParseAddr(p)] = 1
	}
	s.Policy.Addresses = immutable.MakeMap(classes)
	return s
}

// lateCase is a change of the first pod's policy. The peer 10.0.3.9 reaches that pod neither before nor after it.
type lateCase struct {
	name         string
	before       byte // table of the first pod
	peersBefore  []string
	after        byte
	peersAfter   []string
	second       byte // table of the second pod; 0 means that it has the first one's
	lateSets     bool
	withinSet    bool // the first pod's list refers to a set at once
	listFirst    bool // no set is written before the list
	confirmation bool
}

func lateCases() []lateCase {
	some, more := []string{"10.0.3.3"}, []string{"10.0.3.3", "10.0.3.9"}
	return []lateCase{
		{name: "a new set blocks", before: closed, after: blocking, peersAfter: more, second: closed, lateSets: true},
		{name: "a member joins a set that blocks", before: closed, peersBefore: some, after: blocking, peersAfter: more, second: blocking, lateSets: true},
		{name: "a member leaves a set that allows", before: closed, peersBefore: more, after: allowing, peersAfter: some, second: allowing, lateSets: true, listFirst: true},
		{name: "a member joins a set that allows", before: closed, peersBefore: some, after: allowing, peersAfter: []string{"10.0.3.3", "10.0.3.4"}, second: allowing, lateSets: true, withinSet: true},
		{name: "a member joins a set that the list allowed", before: allowing, peersBefore: some, after: closed, peersAfter: more, second: allowing, confirmation: true},
		{name: "a member leaves a set that the list blocked", before: blocking, peersBefore: more, after: closed, peersAfter: some, second: blocking, confirmation: true},
		{name: "a set that the list blocked is removed", before: blocking, peersBefore: more, after: closed, peersAfter: more, second: closed, confirmation: true},
	}
}

// ofTables assigns the tables of two pods.
func ofTables(a byte, first dataplane.EndpointSpec, b byte, second dataplane.EndpointSpec) map[byte][]dataplane.EndpointSpec {
	if a == b {
		return map[byte][]dataplane.EndpointSpec{a: {first, second}}
	}
	return map[byte][]dataplane.EndpointSpec{a: {first}, b: {second}}
}

// guard makes every state between two writes fail the test in which an address reaches an endpoint. It returns how many
// states it has seen, and in how many a write was late.
func (n *node) guard(spec dataplane.EndpointSpec, from string) (seen func() (all, late int)) {
	all, late := 0, 0
	n.fake.Gradual = func(id string) {
		if all++; n.fake.Delayed(id) {
			late++
		}
		if n.passes(spec.ID, from) {
			n.t.Errorf("%s passes\n%s", from, n.fake.Dump())
		}
	}
	return func() (int, int) { return all, late }
}

// sets returns the sets that an endpoint's list refers to.
func (n *node) sets(spec dataplane.EndpointSpec) (sets []string) {
	n.t.Helper()
	list, err := n.fake.AllEndpoints(ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, e := range list {
		acls, err := e.ACLs()
		if err != nil {
			n.t.Fatal(err)
		}
		for _, a := range acls {
			if set := a.LocalAddresses; e.Name == n.name(spec.ID) && acl.OwnSet(set) {
				sets = append(sets, set)
			}
		}
	}
	return sets
}

func (n *node) writes() int { return n.count("ModifyEndpoint") + n.count("ModifyNetwork") }

// TestLateWritesOpenNothing: packets meet sets later than lists, or lists later than sets. A flow that passes neither
// before a change nor after it never passes. The state is right at the end and is not written again.
func TestLateWritesOpenNothing(t *testing.T) {
	for _, c := range lateCases() {
		t.Run(c.name, func(t *testing.T) {
			n, first, second := two(t, hns.Server2022, bridgeConfig())
			for _, peers := range [][]string{{"10.0.3.7"}, c.peersBefore} { // lists refer to their sets from the second on
				n.apply(rulesState(ofTables(c.before, first, c.second, second), peers...))
			}
			if c.confirmation && len(n.sets(first)) == 0 {
				t.Fatal("the list before the change refers to no set")
			}
			if n.passes(first.ID, "10.0.3.9") {
				t.Fatal("the peer passes before the change")
			}
			n.fake.SetLate(c.lateSets, !c.lateSets)
			seen := n.guard(first, "10.0.3.9")
			after := rulesState(ofTables(c.after, first, c.second, second), c.peersAfter...)
			drift, err := n.backend.Audit(ctx, after)
			if err != nil || len(drift) == 0 || slices.ContainsFunc(drift, func(d dataplane.Drift) bool { return strings.Contains(d.Detail, "confirm") }) {
				t.Errorf("drift %v, %v", drift, err)
			}
			n.fake.ForgetCalls()
			n.apply(after)
			if all, late := seen(); all == 0 || late == 0 && !c.listFirst {
				t.Errorf("a write was late in %d of %d states", late, all)
			}
			if listings := n.count("Endpoints"); c.confirmation != (listings == 3) {
				t.Errorf("endpoints were listed %d times; want a confirmation: %t", listings, c.confirmation)
			}
			n.fake.Gradual = nil
			n.fake.SetLate(false, false)
			if n.passes(first.ID, "10.0.3.9") {
				t.Errorf("the peer passes after the change\n%s", n.fake.Dump())
			}
			if c.lateSets && len(n.sets(first)) > 0 != c.withinSet {
				t.Errorf("the list refers to sets %v\n%s", n.sets(first), n.fake.Dump())
			}
			n.unchanged(after)
		})
	}
}

// unchanged checks that a State is in force and is not written again.
func (n *node) unchanged(s *model.State) {
	n.t.Helper()
	n.fake.ForgetCalls()
	if drift, err := n.backend.Audit(ctx, s); err != nil || len(drift) > 0 {
		n.t.Errorf("drift %v, %v", drift, err)
	}
	if n.apply(s); n.writes() > 0 {
		n.t.Errorf("the same State is written again: %v", n.fake.Calls())
	}
}

// TestListGetsItsSetBack: a list with the addresses of a set that could be late refers to the set from its next write
// on. Then changes of members write no list.
func TestListGetsItsSetBack(t *testing.T) {
	n, first, second := two(t, hns.Server2022, bridgeConfig())
	tables := ofTables(blocking, first, closed, second)
	n.apply(rulesState(ofTables(closed, first, closed, second)))
	n.apply(rulesState(tables, "10.0.3.3"))
	if len(n.sets(first)) > 0 || n.passes(first.ID, "10.0.3.3") {
		t.Fatalf("the list does not hold the addresses\n%s", n.fake.Dump())
	}
	n.unchanged(rulesState(tables, "10.0.3.3"))
	n.fake.SetLate(true, false)
	seen := n.guard(first, "10.0.3.3")
	n.apply(rulesState(tables, "10.0.3.3", "10.0.3.4"))
	if _, late := seen(); late == 0 || len(n.sets(first)) != 1 {
		t.Errorf("the list refers to sets %v; %d states with a late write\n%s", n.sets(first), late, n.fake.Dump())
	}
	n.fake.ForgetCalls()
	n.apply(rulesState(tables, "10.0.3.3", "10.0.3.5"))
	if n.count("ModifyEndpoint") > 0 || n.count("ModifyNetwork") == 0 {
		t.Errorf("a change of members wrote %v", n.fake.Calls())
	}
	if n.passes(first.ID, "10.0.3.5") || !n.passes(first.ID, "10.0.3.4") {
		t.Errorf("the members are not in force\n%s", n.fake.Dump())
	}
}

// TestExceptionGetsItsSetBack: a member joins a set that allows and one with an exception from it, while the list is
// written. The plan writes the exception first, so the list can refer to both sets.
func TestExceptionGetsItsSetBack(t *testing.T) {
	n, first, second := two(t, hns.Server2022, bridgeConfig())
	tables := ofTables(barring, first, closed, second)
	n.apply(rulesState(tables, "10.0.3.3"))
	n.fake.SetLate(true, false)
	n.guard(first, "10.0.3.9")
	n.apply(rulesState(tables, "10.0.3.3", "10.0.3.9"))
	if len(n.sets(first)) < 2 || n.passes(first.ID, "10.0.3.9") {
		t.Errorf("the list refers to sets %v\n%s", n.sets(first), n.fake.Dump())
	}
}

// TestLateRepairOpensNothing: another program has put a prefix into a set that allows, and a list that is written refers
// to the set. The write that repairs the set is late.
func TestLateRepairOpensNothing(t *testing.T) {
	n, first, second := two(t, hns.Server2022, bridgeConfig())
	n.apply(rulesState(ofTables(closed, first, allowing, second), "10.0.3.3"))
	networks, err := n.fake.Networks(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range n.sets(second) {
		if _, err := n.fake.ModifyNetwork(ctx, networks[0].ID, hns.Update, hns.SetPolicy{ID: set, Name: set, PolicyType: hns.IPSet, Values: "10.0.3.3,10.0.3.8/31"}.Policy()); err != nil {
			t.Fatal(err)
		}
	}
	if !n.passes(second.ID, "10.0.3.9") {
		t.Fatal("the prefix has no effect: the test shows nothing")
	}
	n.fake.SetLate(true, false)
	seen := n.guard(first, "10.0.3.9")
	after := rulesState(ofTables(allowing, first, allowing, second), "10.0.3.3")
	n.apply(after)
	if _, late := seen(); late == 0 || n.passes(second.ID, "10.0.3.9") || !n.passes(first.ID, "10.0.3.3") {
		t.Errorf("%d states with a late write\n%s", late, n.fake.Dump())
	}
	n.unchanged(after)
}

// TestUnconfirmedListOpensNothing: HNS answers the write of a list, but lists the old one. No set that the old list refers
// to gets a member, and both pods are reported. A listing that fails has the same effect.
func TestUnconfirmedListOpensNothing(t *testing.T) {
	for _, fails := range []bool{false, true} {
		n, first, second := two(t, hns.Server2022, bridgeConfig())
		n.apply(rulesState(ofTables(allowing, first, allowing, second), "10.0.3.3"))
		id := n.hnsID(first.ID)
		old, err := n.fake.Endpoint(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		written, struck := false, 0
		n.fake.Before(func(op, object string) error {
			switch {
			case op == "ModifyEndpoint" && object == id:
				written = true
			case op == "Endpoints" && written && struck == 0:
				struck++
				if fails {
					return hns.NewError(op, hns.CodeInvalidPolicy, "injected")
				}
				_, err := n.fake.ModifyEndpoint(ctx, id, hns.Update, old.Policies...)
				return err
			}
			return nil
		})
		after := rulesState(ofTables(closed, first, allowing, second), "10.0.3.3", "10.0.3.9")
		err = n.tries(after)
		if !dataplane.Concerns(err, second.ID) || !fails && !dataplane.Concerns(err, first.ID) || struck == 0 {
			t.Errorf("listing fails %t: error %v", fails, err)
		}
		if n.passes(first.ID, "10.0.3.9") || n.passes(second.ID, "10.0.3.9") {
			t.Errorf("listing fails %t: the set has the new member\n%s", fails, n.fake.Dump())
		}
		n.fake.Before(nil)
		n.settles(after)
		if n.passes(first.ID, "10.0.3.9") || !n.passes(second.ID, "10.0.3.9") {
			t.Errorf("listing fails %t: not in force\n%s", fails, n.fake.Dump())
		}
	}
}
