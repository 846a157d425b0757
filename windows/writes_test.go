// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/test/hnsemu/fault"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// portState is the State of an endpoint with two kinds of peers: some reach TCP 80, the others
// every port.
func portState(spec dataplane.EndpointSpec, some, everything []string) *model.State {
	s := peerState(spec)
	table := *s.Policy.Tables[model.TableID{1}]
	row := func(id string, cells ...model.Verdict) *model.Row {
		r := &model.Row{}
		for _, v := range cells {
			r.Cells = append(r.Cells, model.Decision{Verdict: v, Cause: &model.Cause{Reason: model.ReasonRule, Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "x", Name: id}}})
		}
		return r
	}
	table.Sides[model.Ingress] = model.Side{Default: row("none", model.Deny), Rows: immutable.MakeMap(map[model.PeerClass]*model.Row{
		1: row("some", model.Deny, model.Allow), 2: row("everything", model.Allow, model.Allow)})}
	s.Policy.Tables = map[model.TableID]*model.Table{table.ID: &table}
	s.Policy.Ports = []model.PortRange{{Protocol: model.TCP, First: 80, Last: 80, Class: 1}}
	s.Policy.PortClasses = []model.PortClassInfo{{}, {Class: 1}}
	s.Policy.PeerClasses = []model.PeerClassInfo{{}, {Class: 1}, {Class: 2}}
	classes := make(map[netip.Addr]model.PeerClass)
	for class, list := range [][]string{1: some, 2: everything} {
		for _, ip := range list {
			classes[netip.MustParseAddr(ip)] = model.PeerClass(class)
		}
	}
	s.Policy.Addresses = immutable.MakeMap(classes)
	return s
}

// TestPeerBetweenTwoSets moves a peer from one set to another while the write of the other set
// fails. The peer must stay in the first set, because both policies allow it.
func TestPeerBetweenTwoSets(t *testing.T) {
	n := newNode(t, hns.Server2022, bridgeConfig())
	spec := n.spec("c1", "10.0.1.7")
	n.add(spec)
	n.apply(portState(spec, []string{"10.0.3.3", "10.0.3.4"}, []string{"10.0.3.5"}))
	if !n.passes(spec.ID, "10.0.3.3") {
		t.Fatal("the peer does not pass at first")
	}
	first := true
	n.failing(func(op, _ string) bool {
		fails := op == "ModifyNetwork" && first
		first = first && !fails
		return fails
	}, hns.CodeInvalidPolicy)
	next := portState(spec, []string{"10.0.3.4"}, []string{"10.0.3.3", "10.0.3.5"})
	if _, err := n.backend.Apply(ctx, next); !dataplane.Concerns(err, spec.ID) || first {
		t.Fatalf("error %v", err)
	}
	if !n.passes(spec.ID, "10.0.3.3") {
		t.Errorf("the peer is cut off although both policies let it in:\n%s", n.fake.Dump())
	}
	n.fake.Before(nil)
	n.apply(next)
	if !n.send(spec.ID, model.Ingress, netip.MustParseAddr("10.0.3.3"), model.TCP, 81, hns.Reading{}) {
		t.Error("the next Apply did not complete")
	}
}

// TestListIsNotStored makes HNS report success and keep the old list. Changes that depend on the
// new list must not be made, because the old list still refers to the set.
func TestListIsNotStored(t *testing.T) {
	n := newNode(t, hns.Server2022, bridgeConfig())
	faults := new(fault.Faults)
	b, err := windows.New(ctx, n.config, &fault.Client{Fake: n.fake, Faults: faults}, discard)
	if err != nil {
		t.Fatal(err)
	}
	n.backend = b
	spec := n.spec("c1", "10.0.1.7")
	n.add(spec)
	n.apply(peerState(spec, "10.0.3.3"))
	shut := portState(spec, nil, nil)
	shut.Policy.Tables[model.TableID{1}] = &model.Table{ID: model.TableID{1}, Sides: [2]model.Side{{Default: &model.Row{}}, {Default: &model.Row{}}}}
	faults.Set(fault.Fault{Op: "Modify.endpoint", Times: 1, Lie: true})
	n.fake.ForgetCalls()
	if _, err := n.backend.Apply(ctx, shut); !dataplane.Concerns(err, spec.ID) || !strings.Contains(err.Error(), "hns accepted") {
		t.Fatalf("error %v, want one that says what HNS holds", err)
	}
	if calls := n.count("ModifyNetwork"); calls != 0 {
		t.Errorf("%d writes of sets that the old list refers to", calls)
	}
	faults.Clear()
	n.apply(shut)
	if n.passes(spec.ID, "10.0.3.3") {
		t.Error("the next Apply did not complete")
	}
}

// TestSetThatAppears makes a set appear just before Apply creates it, as a late call of an earlier
// write can. Apply must give the set its own members.
func TestSetThatAppears(t *testing.T) {
	n := newNode(t, hns.Server2022, bridgeConfig())
	spec := n.spec("c1", "10.0.1.7")
	n.add(spec)
	made := n.firstSet(peerState(spec, "10.0.3.3")) // its name follows from the policy
	n.apply(&model.State{})
	networks, _ := n.fake.Networks(ctx)
	if sets, _ := networks[0].Sets(); len(sets) != 0 {
		t.Fatalf("sets %v are left", sets)
	}
	late := made
	late.Values = "10.0.3.9"
	appeared := false
	n.fake.Before(func(op, id string) error {
		if op == "ModifyNetwork" && !appeared {
			appeared = true
			if _, err := n.fake.ModifyNetwork(ctx, id, hns.Add, late.Policy()); err != nil {
				t.Error(err)
			}
		}
		return nil
	})
	n.apply(peerState(spec, "10.0.3.3"))
	n.fake.Before(nil)
	if !appeared || !n.passes(spec.ID, "10.0.3.3") || n.passes(spec.ID, "10.0.3.9") {
		t.Errorf("appeared %t; in force:\n%s", appeared, n.fake.Dump())
	}
}

// firstSet applies a State and returns the set that HNS has afterwards.
func (n *node) firstSet(s *model.State) hns.SetPolicy {
	n.t.Helper()
	n.apply(s)
	networks, err := n.fake.Networks(ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	sets, err := networks[0].Sets()
	if err != nil || len(sets) == 0 {
		n.t.Fatalf("sets %v, %v", sets, err)
	}
	return sets[0]
}

// TestEndpointUnderAnotherID recreates an endpoint with another ID while its list is written, as a
// restart of HNS does. The list must go to the endpoint of that name only.
func TestEndpointUnderAnotherID(t *testing.T) {
	for _, v := range []hns.Version{hns.Server2019, hns.Server2022} {
		n, first, second := two(t, v, bridgeConfig())
		n.apply(both(first, second, "10.0.3.4"))
		was := n.hnsID(second.ID)
		n.fake.Before(func(op, id string) error {
			if op != "ModifyEndpoint" || id != was {
				return nil
			}
			n.fake.Before(nil)
			networks, _ := n.fake.Networks(ctx)
			list, _ := n.fake.Endpoints(ctx, networks[0].ID)
			for _, e := range list {
				if e.ID != was {
					continue
				}
				if err := n.fake.DeleteEndpoint(ctx, was); err != nil {
					t.Error(err)
				}
				again := hns.Endpoint{Name: e.Name, HostComputeNetwork: e.HostComputeNetwork, IPConfigurations: e.IPConfigurations}
				for _, p := range e.Policies {
					if !p.Is("L2Driver") {
						again.Policies = append(again.Policies, p)
					}
				}
				made, err := n.fake.CreateEndpoint(ctx, again)
				if err != nil {
					t.Fatal(err)
				}
				attach(t, n, e.HostComputeNamespace, made)
			}
			return nil
		})
		next := both(first, second, "10.0.3.4") // the first stays, the second opens to another peer
		opened := peerState(second, "10.0.3.3").Policy.Tables[model.TableID{1}]
		other := *opened
		other.ID = model.TableID{2}
		next.Policy.Tables[other.ID] = &other
		e := next.Policy.Endpoints[second.ID]
		e.Table = other.ID
		next.Policy.Endpoints[second.ID] = e
		other.Sides[1] = model.Side{Default: &model.Row{}} // so that its list changes
		n.apply(next)
		if n.hnsID(second.ID) == was {
			t.Fatalf("hns %s: the endpoint was not recreated", v)
		}
		remote := netip.MustParseAddr("10.0.3.4")
		for id, out := range map[model.EndpointID]bool{first.ID: true, second.ID: false} {
			if !n.passes(id, "10.0.3.4") || n.send(id, model.Egress, remote, model.TCP, 80, hns.Reading{}) != out {
				t.Errorf("hns %s: %s has the list of another:\n%s", v, id, n.fake.Dump())
			}
		}
	}
}

// TestApplyKeepsOtherPolicies writes lists on an HNS that lets an Update replace
// all policies of an endpoint. Translation, routes and host ports must remain.
func TestApplyKeepsOtherPolicies(t *testing.T) {
	for _, all := range []bool{false, true} {
		n := newNode(t, hns.Server2022, bridgeConfig())
		n.fake.UpdateReplacesAll = all
		spec := n.spec("c1", "10.0.1.7")
		spec.HostPorts = []model.HostPort{{Protocol: model.TCP, Number: 8080, Port: 80}}
		spec.Bandwidth = model.Bandwidth{Egress: model.Limit{Rate: 8_000_000, Burst: 80_000}}
		n.add(spec)
		before := n.others(spec.ID)
		for _, kind := range []string{hns.TypeOutBoundNAT, hns.TypeSDNRoute, hns.TypePortMapping, hns.TypeQOS} {
			if !strings.Contains(before, kind) {
				t.Fatalf("the endpoint has no %s: the test shows nothing:\n%s", kind, before)
			}
		}
		for _, peers := range [][]string{{"10.0.3.3"}, {}, {"10.0.3.3", "10.0.3.4"}} {
			n.apply(peerState(spec, peers...))
			if after := n.others(spec.ID); after != before {
				t.Errorf("update replaces all %t, peers %v: the other policies are\n%s\nwant\n%s", all, peers, after, before)
			}
		}
		if got := n.problems(spec.ID); got != "" {
			t.Errorf("update replaces all %t: problems %q", all, got)
		}
	}
}

// others formats the policies of an endpoint that are not ACLs.
func (n *node) others(id model.EndpointID) string {
	n.t.Helper()
	networks, _ := n.fake.Networks(ctx)
	list, err := n.fake.Endpoints(ctx, networks[0].ID)
	if err != nil {
		n.t.Fatal(err)
	}
	var text strings.Builder
	for _, e := range list {
		for _, p := range e.Policies {
			if e.Name == n.name(id) && !p.Is(hns.TypeACL) {
				b, err := json.Marshal(p)
				if err != nil {
					n.t.Fatal(err)
				}
				text.Write(append(b, '\n'))
			}
		}
	}
	return text.String()
}

// TestRemoteEndpointsAreNotPods checks that endpoints that kube-proxy makes for pods of other nodes
// do not count as attached here, whatever their name. Their ACLs are not written, and a remote
// endpoint with the name of a pod is a problem.
func TestRemoteEndpointsAreNotPods(t *testing.T) {
	n := newNode(t, hns.Server2022, bridgeConfig())
	spec := n.spec("c1", "10.0.1.7")
	n.add(spec)
	networks, _ := n.fake.Networks(ctx)
	remote, err := n.fake.CreateEndpoint(ctx, hns.Endpoint{Name: n.name("c9:eth0"), Flags: hns.RemoteEndpoint, HostComputeNetwork: networks[0].ID,
		IPConfigurations: []hns.IPConfig{{IPAddress: "10.0.2.9"}}})
	if err != nil {
		t.Fatal(err)
	}
	n.fake.Before(func(op, id string) error {
		if op == "ModifyEndpoint" && id == remote.ID {
			t.Error("a remote endpoint was written")
		}
		return nil
	})
	n.apply(peerState(spec, "10.0.3.3"))
	if got := n.problems("c9:eth0"); !strings.Contains(got, "is a remote endpoint") {
		t.Errorf("problems %q", got)
	}
	if got := n.problems(spec.ID); got != "" {
		t.Errorf("problems of the pod %q", got)
	}
}

// TestRemoteEndpointsAreReplaced checks an HNS that assigns one address to a local and a remote endpoint, where
// packets may go to the wrong one. ADD removes the remote one: its address is in the range of this
// node, so it is stale.
func TestRemoteEndpointsAreReplaced(t *testing.T) {
	n := newNode(t, hns.Server2019, bridgeConfig())
	n.fake.SetQuirks(hnstest.Quirks{RemotesApart: true})
	networks, _ := n.fake.Networks(ctx)
	for name, ip := range map[string]string{"stale": "10.0.1.7", "right": "10.0.2.7"} {
		if _, err := n.fake.CreateEndpoint(ctx, hns.Endpoint{Name: name, Flags: hns.RemoteEndpoint, HostComputeNetwork: networks[0].ID,
			IPConfigurations: []hns.IPConfig{{IPAddress: ip}}}); err != nil {
			t.Fatal(err)
		}
	}
	n.add(n.spec("c1", "10.0.1.7"))
	if dump := n.fake.Dump(); strings.Contains(dump, "endpoint stale ") || !strings.Contains(dump, "endpoint right ") {
		t.Errorf("left:\n%s", dump)
	}
}

// TestNoCallsWhileHNSIsSilent checks an HNS that answers no write. After two attempts the agent writes
// nothing more, so that other work does not wait for many deadlines.
func TestNoCallsWhileHNSIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := bridgeConfig()
		c.CallDeadline = 500 * time.Millisecond
		n := newNode(t, hns.Server2022, c)
		specs := make([]dataplane.EndpointSpec, 6)
		for i := range specs {
			specs[i] = n.spec(fmt.Sprintf("c%d", i), fmt.Sprintf("10.0.1.%d", 10+i))
			n.add(specs[i])
		}
		state := peerState(specs[0], "10.0.3.3")
		for _, s := range specs[1:] {
			state = joined(state, s)
		}
		release := make(chan struct{})
		var writes atomic.Int64
		n.fake.Before(func(op, _ string) error {
			if op == "ModifyEndpoint" {
				writes.Add(1)
				<-release
			}
			return nil
		})
		_, err := n.backend.Apply(ctx, state)
		for _, s := range specs {
			if !dataplane.Concerns(err, s.ID) {
				t.Errorf("no error for %s, whose list was not written: %v", s.ID, err)
			}
		}
		if got := writes.Load(); got != 2 {
			t.Errorf("%d lists were tried, want 2", got)
		}
		n.fake.Before(nil)
		close(release)
		n.settles(state)
		for _, s := range specs {
			if !n.passes(s.ID, "10.0.3.3") {
				t.Errorf("%s has no policy in the end", s.ID)
			}
		}
	})
}

// joined adds an endpoint to a State, under the table of the others.
func joined(s *model.State, spec dataplane.EndpointSpec) *model.State {
	c := *s
	c.Policy.Endpoints = maps.Clone(s.Policy.Endpoints)
	c.Policy.Endpoints[spec.ID] = model.EndpointState{Pod: spec.Pod, IPs: spec.IPs, Table: model.TableID{1}}
	return &c
}
