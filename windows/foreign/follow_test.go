// SPDX-License-Identifier: Apache-2.0

package foreign_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// ops lists the calls of HNS since the last time.
func (n *node) ops() string {
	var all []string
	for _, c := range n.fake.Calls() {
		all = append(all, c.Op)
	}
	n.fake.ForgetCalls()
	return strings.Join(all, " ")
}

func (n *node) follow() {
	n.t.Helper()
	if err := n.backend.Follow(ctx); err != nil {
		n.t.Fatal(err)
	}
}

// id returns the GUID of an endpoint.
func (n *node) id(name string) string {
	n.t.Helper()
	list, err := n.fake.Endpoints(ctx, n.network)
	i := slices.IndexFunc(list, func(e hns.Endpoint) bool { return e.Name == name })
	if err != nil || i < 0 {
		n.t.Fatalf("endpoint %s: %v", name, err)
	}
	return list[i].ID
}

// TestFollow checks that policy follows what other programs do to endpoints without a listing while nothing changes: an endpoint is made again,
// its ACLs are replaced, it leaves its namespace and comes back. Endpoints of pods on other nodes are no change.
func TestFollow(t *testing.T) {
	n := newNode(t, hns.L2Bridge)
	n.follow() // before the first Apply
	s := n.chained("web", "10.1.0.5", theirs()...)
	n.apply(state(s))
	n.follow()
	remotes := 0
	remote := func() {
		remotes++
		if _, err := n.fake.CreateEndpoint(ctx, hns.Endpoint{HostComputeNetwork: n.network, Flags: hns.RemoteEndpoint, SchemaVersion: hns.Schema2,
			IPConfigurations: []hns.IPConfig{{IPAddress: fmt.Sprintf("10.1.9.%d", remotes), PrefixLength: 16}}}); err != nil {
			t.Fatal(err)
		}
	}
	for name, change := range map[string]func(){
		"made again": func() {
			if err := n.fake.DeleteEndpoint(ctx, n.id("web")); err != nil {
				t.Fatal(err)
			}
			n.make("web", "10.1.0.5", s.NetNS, theirs()...)
		},
		"other ACLs": func() {
			if _, err := n.fake.ModifyEndpoint(ctx, n.id("web"), hns.Update, theirs()...); err != nil {
				t.Fatal(err)
			}
		},
		"attached again": func() {
			id := n.id("web")
			if err := n.fake.DetachEndpoint(ctx, s.NetNS, id); err != nil {
				t.Fatal(err)
			}
			if _, err := n.fake.ModifyEndpoint(ctx, id, hns.Update, theirs()...); err != nil {
				t.Fatal(err)
			}
			n.follow()
			if err := n.fake.AttachEndpoint(ctx, s.NetNS, id); err != nil {
				t.Fatal(err)
			}
		},
	} {
		change()
		n.unpoliced(s)
		n.follow()
		n.want(s, "in out")
		n.follow() // our own write is a change
		n.ops()
		n.follow()
		if got := n.ops(); got != "Summary" {
			t.Errorf("%s: then it calls %s", name, got)
		}
		remote()
		n.ops()
		n.follow()
		if got := n.ops(); got != "Summary" {
			t.Errorf("a remote endpoint: it calls %s", got)
		}
	}
}

// TestFollowFails checks that a summary that cannot be read is an error of Follow, and keeps Idle from nothing.
func TestFollowFails(t *testing.T) {
	n := newNode(t, hns.L2Bridge)
	s := n.chained("web", "10.1.0.5", theirs()...)
	n.apply(state(s))
	n.fake.Before(func(op, _ string) error {
		if op == "Summary" {
			return hns.NewError(op, hns.CodeNotImplemented, "not here")
		}
		return nil
	})
	if _, err := n.fake.ModifyEndpoint(ctx, n.id("web"), hns.Update, theirs()...); err != nil {
		t.Fatal(err)
	}
	if err := n.backend.Follow(ctx); hns.Code(err) != hns.CodeNotImplemented {
		t.Errorf("error %v", err)
	}
	n.unpoliced(s)
	if _, err := n.backend.Idle(ctx); err != nil {
		t.Error(err)
	}
	n.want(s, "in out")
}

// TestManyRemoteEndpoints runs ten minutes of a node on which kube-proxy has an endpoint for each of 500 backends, and HNS needs 4 ms for each endpoint
// of a listing. HNS works less than a third of the time for the agent. Policy follows an endpoint that is made again within two seconds and two
// listings. Without summaries it takes ten times a listing.
func TestManyRemoteEndpoints(t *testing.T) {
	for _, of := range []struct{ blind, adopts bool }{{false, false}, {false, true}, {true, false}} {
		t.Run(fmt.Sprintf("%+v", of), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &slowNode{node: timedNode(t), blind: of.blind, adopts: of.adopts}
				s := n.chained("web", "10.1.0.5", theirs()...)
				n.apply(state(s))
				n.fake.Before(n.work)
				never := func() bool { return false }
				n.run(time.Minute, never)
				n.busy = 0
				if took := n.run(10*time.Minute, never); n.busy*3 > took {
					t.Errorf("HNS works %s in %s", n.busy, took)
				}
				n.fake.Before(nil)
				if err := n.fake.DeleteEndpoint(ctx, n.id("web")); err != nil {
					t.Fatal(err)
				}
				n.make("web", "10.1.0.5", s.NetNS, theirs()...)
				n.unpoliced(s)
				n.fake.Before(n.work)
				bound := 2*time.Second + 2*slowListing
				if of.blind {
					bound += 9 * slowListing
				}
				if took := n.run(time.Hour, n.policed); took > bound {
					t.Errorf("policy is in force after %s, want %s", took, bound)
				}
				n.fake.Before(nil)
				n.want(s, "in out")
			})
		})
	}
}

// TestFailedWriteIsRepeated checks that a write which HNS has refused is tried again each second, however long listings take.
func TestFailedWriteIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &slowNode{node: timedNode(t)}
		s := n.chained("web", "10.1.0.5", theirs()...)
		n.apply(state(s))
		if _, err := n.fake.ModifyEndpoint(ctx, n.id("web"), hns.Update, theirs()...); err != nil {
			t.Fatal(err)
		}
		n.refuses = true
		n.fake.Before(n.work)
		n.run(65*time.Second, func() bool { return false }) // not when a listing is due anyway
		n.refuses = false
		if took, bound := n.run(time.Hour, n.policed), 2*time.Second+2*slowListing; took > bound {
			t.Errorf("policy is in force after %s, want %s", took, bound)
		}
	})
}

// TestFollowAfterSilence checks that a call that HNS does not answer, of each kind, delays later ones by no more than its deadline.
func TestFollowAfterSilence(t *testing.T) {
	for _, silent := range []string{"Summary", "Endpoints"} {
		t.Run(silent, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := timedNode(t)
				s := n.chained("web", "10.1.0.5", theirs()...)
				n.apply(state(s))
				began := time.Now()
				n.fake.Before(func(op, _ string) error {
					if op == silent && time.Since(began) < time.Second {
						time.Sleep(3 * time.Minute)
					}
					return nil
				})
				for time.Since(began) < 200*time.Second {
					_ = n.backend.Follow(ctx) // an error until HNS answers
					_, _ = n.backend.Idle(ctx)
					time.Sleep(400 * time.Millisecond)
				}
				n.fake.Before(nil)
				if _, err := n.fake.ModifyEndpoint(ctx, n.id("web"), hns.Update, theirs()...); err != nil {
					t.Fatal(err)
				}
				n.unpoliced(s)
				n.follow()
				n.want(s, "in out")
				if _, err := n.fake.ModifyEndpoint(ctx, n.id("web"), hns.Update, theirs()...); err != nil {
					t.Fatal(err)
				}
				if _, err := n.backend.Idle(ctx); err != nil {
					t.Fatal(err)
				}
				n.want(s, "in out")
			})
		})
	}
}

// slowListing is the time of a listing of a slowNode.
const slowListing = 500 * 4 * time.Millisecond

// timedNode is a node whose clock is that of the test.
func timedNode(t *testing.T) *node {
	n := newNode(t, hns.L2Bridge)
	n.now = time.Now
	n.start()
	return n
}

// slowNode is a node whose HNS takes its time. A blind one has no summaries; one that refuses does so to all writes. One that adopts has pods
// that no ADD named.
type slowNode struct {
	*node
	blind, refuses, adopts bool
	busy                   time.Duration
}

// policed reports whether an endpoint has ACLs of ours.
func (n *slowNode) policed() bool { return strings.Contains(n.fake.Dump(), "id=isthmus") }

func (n *slowNode) work(op, _ string) error {
	took := time.Millisecond
	switch {
	case op == "Endpoints":
		took = slowListing
	case op == "ModifyEndpoint" && n.refuses:
		return hns.NewError(op, hns.CodeInvalidPolicy, "not now")
	case op == "Summary" && n.blind:
		return hns.NewError(op, hns.CodeNotImplemented, "not here")
	case op == "Summary":
		took = 20 * time.Millisecond
	}
	time.Sleep(took)
	n.busy += took
	return nil
}

// run lets the agent follow and be idle as often as its loop does, and returns how long it took.
func (n *slowNode) run(limit time.Duration, done func() bool) time.Duration {
	began, idle := time.Now(), time.Now()
	for time.Since(began) < limit && !done() {
		if err := n.backend.Follow(ctx); err != nil && !n.blind {
			n.t.Fatal(err)
		}
		if !time.Now().Before(idle) {
			idle = time.Now().Add(time.Second)
			if _, err := n.backend.Idle(ctx); err != nil {
				n.t.Fatal(err)
			}
			if n.adopts { // as while any pod is adopted
				if list, err := n.backend.Interfaces(ctx); err != nil || len(list) > 1 {
					n.t.Fatal(list, err)
				}
			}
		}
		time.Sleep(400 * time.Millisecond)
	}
	return time.Since(began)
}
