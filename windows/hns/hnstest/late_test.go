// SPDX-License-Identifier: Apache-2.0

package hnstest_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// lateNode is an endpoint whose list allows a set, with 10.0.3.3 as its member.
type lateNode struct {
	*testing.T
	fake     *hnstest.Fake
	network  string
	endpoint string
}

func newLateNode(t *testing.T) *lateNode {
	ctx := context.Background()
	l := &lateNode{T: t, fake: hnstest.NewFake(hns.Server2022)}
	n, err := l.fake.CreateNetwork(ctx, hns.Network{Name: "n", Type: hns.L2Bridge, Ipams: []hns.Ipam{{Type: "Static", Subnets: []hns.Subnet{{IPAddressPrefix: "10.0.1.0/24", Routes: []hns.Route{{NextHop: "10.0.1.1", DestinationPrefix: "0.0.0.0/0"}}}}}}, SchemaVersion: hns.Schema2})
	if err != nil {
		t.Fatal(err)
	}
	l.network = n.ID
	l.put(hns.Add, "10.0.3.3")
	e, err := l.fake.CreateEndpoint(ctx, hns.Endpoint{Name: "e", HostComputeNetwork: n.ID, SchemaVersion: hns.Schema2, Policies: []hns.Policy{l.acl(hns.Allow)}})
	if err != nil {
		t.Fatal(err)
	}
	if l.endpoint = e.ID; l.fake.AttachEndpoint(ctx, l.fake.AddNamespace(), e.ID) != nil {
		t.Fatal("the endpoint cannot be attached")
	}
	return l
}

func (l *lateNode) acl(a hns.Action) hns.Policy {
	return hns.ACL{Protocols: "6", Action: a, Direction: hns.In, RuleType: hns.Switch, Priority: 100, LocalAddresses: "s"}.Policy()
}

func (l *lateNode) put(r hns.RequestType, values string) {
	l.Helper()
	if _, err := l.fake.ModifyNetwork(context.Background(), l.network, r, hns.SetPolicy{ID: "s", Name: "s", PolicyType: hns.IPSet, Values: values}.Policy()); err != nil {
		l.Fatal(err)
	}
}

func (l *lateNode) write(a hns.Action) {
	l.Helper()
	if _, err := l.fake.ModifyEndpoint(context.Background(), l.endpoint, hns.Update, l.acl(a)); err != nil {
		l.Fatal(err)
	}
}

// expect sends a packet from 10.0.3.4.
func (l *lateNode) expect(when string, passes, delayed bool) {
	l.Helper()
	out, err := l.fake.Send("e", hns.Packet{Direction: hns.In, Remote: netip.MustParseAddr("10.0.3.4"), Protocol: 6, Port: 80}, hns.Reading{})
	if err != nil || out.Allow != passes || l.fake.Delayed(l.endpoint) != delayed {
		l.Errorf("%s: passes %t, delayed %t, %v", when, out.Allow, l.fake.Delayed(l.endpoint), err)
	}
}

// TestLateSets: packets meet a set when networks are listed, and not before.
func TestLateSets(t *testing.T) {
	ctx := context.Background()
	l := newLateNode(t)
	l.fake.SetLate(true, false)
	l.put(hns.Update, "10.0.3.4")
	l.put(hns.Update, "10.0.3.4,10.0.3.5")
	l.write(hns.Allow)
	l.expect("before networks are listed", false, true)
	if list, err := l.fake.Endpoints(ctx, l.network); err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	l.expect("when endpoints are listed", false, true)
	list, err := l.fake.Networks(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if sets, err := list[0].Sets(); err != nil || sets[0].Values != "10.0.3.4,10.0.3.5" {
		t.Errorf("HNS shows %v, %v", sets, err)
	}
	l.expect("when networks are listed", true, false)
}

// TestLateLists: packets meet a list when endpoints are listed, and not before. Gradual sees the old list beside a new
// set.
func TestLateLists(t *testing.T) {
	ctx := context.Background()
	l := newLateNode(t)
	l.fake.SetLate(false, true)
	l.write(hns.Block)
	steps := 0
	l.fake.Gradual = func(string) {
		steps++
		l.expect("after a write of the set", true, true)
	}
	l.put(hns.Update, "10.0.3.4")
	if steps != 1 {
		t.Errorf("%d steps", steps)
	}
	if _, err := l.fake.Networks(ctx); err != nil {
		t.Fatal(err)
	}
	l.expect("when networks are listed", true, true)
	if _, err := l.fake.Endpoints(ctx, l.network); err != nil {
		t.Fatal(err)
	}
	l.expect("when endpoints are listed", false, false)
}
