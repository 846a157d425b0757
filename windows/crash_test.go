// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// crash is the value with which a Step panics.
type crash struct{}

// during runs f with a Step that crashes at its nth call, and reports whether that call was
// reached.
func (n *node) during(crashAt int, f func()) (crashed bool) {
	calls := 0
	n.config.Step = func(string) {
		if calls++; calls == crashAt {
			panic(crash{})
		}
	}
	defer func() {
		n.config.Step = nil
		if p := recover(); p != nil {
			if _, ok := p.(crash); !ok {
				panic(p)
			}
			crashed = true
		}
	}()
	n.start()
	f()
	return false
}

// TestCrashAnywhere kills the agent between any two steps of ADD, Apply and DEL. Afterwards either
// the same call completes, or the endpoint is found and collected. Nothing may be left.
func TestCrashAnywhere(t *testing.T) {
	points := 0
	for _, c := range []windows.Config{bridgeConfig(), overlayConfig()} {
		for _, retry := range []bool{true, false} {
			for at := 1; ; at++ {
				n := &node{t: t, fake: hnstest.NewFake(hns.Server2022), config: c}
				var spec dataplane.EndpointSpec
				crashed := n.during(at, func() {
					spec = n.spec("c1", "10.0.1.7")
					n.add(spec)
					n.apply(peerState(spec, "10.0.3.3", "10.0.3.4"))
					n.apply(peerState(spec, "10.0.3.4", "10.0.3.5"))
					if err := n.backend.DeleteEndpoint(ctx, spec.ID); err != nil {
						t.Fatal(err)
					}
				})
				points++
				n.start()
				want := &node{t: t, fake: hnstest.NewFake(hns.Server2022), config: c}
				want.start()
				if retry && spec.ID != "" {
					n.add(spec)
					state := peerState(spec, "10.0.3.5")
					n.apply(state)
					for remote, pass := range map[string]bool{"10.0.3.5": true, "10.0.3.3": false} {
						if n.send(spec.ID, model.Ingress, netip.MustParseAddr(remote), model.TCP, 80, hns.Reading{}) != pass {
							t.Errorf("crash at step %d: %s passes: %t", at, remote, !pass)
						}
					}
				}
				collect(t, n)
				n.fake.RemoveNamespace(spec.NetNS)
				if got, want := n.fake.Dump(), want.fake.Dump(); withoutMACs(got) != withoutMACs(want) {
					t.Errorf("crash at step %d, retry %t: left:\n%s\nwant\n%s", at, retry, got, want)
				}
				if !crashed {
					break
				}
			}
		}
	}
	t.Logf("%d crash points", points)
}

// withoutMACs removes the MAC addresses, which HNS assigns in order.
func withoutMACs(dump string) string {
	var lines []string
	for line := range strings.Lines(dump) {
		if before, after, ok := strings.Cut(line, " 00-15-5D-"); ok {
			line = before + after[len("xx-xx-xx"):]
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "")
}

// collect deletes every endpoint that the backend finds, as garbage collection
// does, and applies an empty State.
func collect(t *testing.T, n *node) {
	t.Helper()
	found, err := n.backend.Endpoints(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range found {
		if err := n.backend.DeleteEndpoint(ctx, e.ID); err != nil {
			t.Fatal(err)
		}
	}
	n.apply(&model.State{})
}

// peerState allows TCP 80 from some addresses, and all egress.
func peerState(spec dataplane.EndpointSpec, peers ...string) *model.State {
	cause := &model.Cause{Reason: model.ReasonRule, Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "x", Name: "p"}}
	deny := &model.Row{Cells: []model.Decision{{}, {}}}
	allow := &model.Row{Cells: []model.Decision{{Verdict: model.Allow}, {Verdict: model.Allow}}}
	web := &model.Row{Cells: []model.Decision{{}, {Verdict: model.Allow, Cause: cause}}}
	table := &model.Table{ID: model.TableID{1}, Sides: [2]model.Side{{Default: deny, Rows: immutable.MakeMap(map[model.PeerClass]*model.Row{1: web})}, {Default: allow}}}
	s := &model.State{
		Policy: model.PolicyState{Endpoints: map[model.EndpointID]model.EndpointState{spec.ID: {Pod: spec.Pod, IPs: spec.IPs, Table: table.ID}},
			Tables: map[model.TableID]*model.Table{table.ID: table},
			Ports:  []model.PortRange{{Protocol: model.TCP, First: 80, Last: 80, Class: 1}}},
	}
	addresses := make(map[netip.Addr]model.PeerClass)
	for _, p := range peers {
		addresses[netip.MustParseAddr(p)] = 1
	}
	s.Policy.Addresses = immutable.MakeMap(addresses)
	return s
}

// TestFailedAddLeavesNothing checks that nothing of an attachment is left, whichever call of ADD
// fails or hangs.
func TestFailedAddLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, hang := range []bool{false, true} {
			for at := 1; ; at++ {
				c := bridgeConfig()
				c.CallDeadline = 50 * time.Millisecond
				n := newNode(t, hns.Server2022, c)
				spec := n.spec("c1", "10.0.1.7")
				before := n.fake.Dump()
				var calls atomic.Int64 // a hung call continues concurrently with the test
				release := make(chan struct{})
				n.fake.After(func(op, _ string) error { // the call took effect, but its caller gets no answer
					if calls.Add(1) != int64(at) {
						return nil
					}
					if hang {
						<-release
					}
					return hns.NewError(op, hns.CodeInvalidPolicy, "injected")
				})
				_, err := n.backend.AddEndpoint(ctx, spec)
				n.fake.After(nil)
				close(release)
				if err == nil {
					if calls.Load() >= int64(at) {
						t.Errorf("call %d failed, ADD did not", at)
					}
					break
				}
				if got := n.fake.Dump(); got != before {
					t.Errorf("hang %t, call %d: %v: left:\n%s", hang, at, err, got)
				}
			}
		}
	})
}
