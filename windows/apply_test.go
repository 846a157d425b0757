// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// two is a node with two endpoints and a State for both.
func two(t *testing.T, v hns.Version, c windows.Config) (n *node, first, second dataplane.EndpointSpec) {
	t.Helper()
	n = newNode(t, v, c)
	first, second = n.spec("c1", "10.0.1.7"), n.spec("c2", "10.0.1.8")
	n.add(first)
	n.add(second)
	return n, first, second
}

// both joins the States of two endpoints under one table.
func both(first, second dataplane.EndpointSpec, peers ...string) *model.State {
	s := peerState(first, peers...)
	e := s.Policy.Endpoints[first.ID]
	e.Pod, e.IPs = second.Pod, second.IPs
	s.Policy.Endpoints[second.ID] = e
	return s
}

func (n *node) passes(id model.EndpointID, from string) bool {
	n.t.Helper()
	return n.send(id, model.Ingress, netip.MustParseAddr(from), model.TCP, 80, hns.Reading{})
}

// failing makes calls fail that match.
func (n *node) failing(match func(op, id string) bool, code uint32) {
	n.fake.Before(func(op, id string) error {
		if match(op, id) {
			return hns.NewError(op, code, "injected")
		}
		return nil
	})
}

// hnsID finds the HNS id of an endpoint.
func (n *node) hnsID(id model.EndpointID) string {
	n.t.Helper()
	networks, _ := n.fake.Networks(ctx)
	list, _ := n.fake.Endpoints(ctx, networks[0].ID)
	i := slices.IndexFunc(list, func(e hns.Endpoint) bool { return e.Name == n.name(id) })
	if i < 0 {
		n.t.Fatalf("hns has no endpoint %s", id)
	}
	return list[i].ID
}

// TestOneEndpointFails checks that other endpoints are written, that the failed one keeps its list,
// and that the next Apply completes.
func TestOneEndpointFails(t *testing.T) {
	for _, v := range []hns.Version{hns.Server2019, hns.Server2022} {
		n, first, second := two(t, v, bridgeConfig())
		bad := n.hnsID(first.ID)
		n.failing(func(op, id string) bool { return op == "ModifyEndpoint" && id == bad }, hns.CodeInvalidPolicy)
		_, err := n.backend.Apply(ctx, both(first, second, "10.0.3.3"))
		var at *dataplane.EndpointError
		if !errors.As(err, &at) || at.ID != first.ID || !errors.Is(err, hns.ErrRefused) {
			t.Fatalf("error %v", err)
		}
		if !dataplane.Concerns(err, first.ID) || dataplane.Concerns(err, second.ID) {
			t.Errorf("error %v concerns first %t, second %t", err, dataplane.Concerns(err, first.ID), dataplane.Concerns(err, second.ID))
		}
		if n.passes(first.ID, "10.0.3.3") || !n.passes(second.ID, "10.0.3.3") {
			t.Errorf("hns %s: first passes %t, second %t", v, n.passes(first.ID, "10.0.3.3"), n.passes(second.ID, "10.0.3.3"))
		}
		n.fake.Before(nil)
		n.apply(both(first, second, "10.0.3.3"))
		if !n.passes(first.ID, "10.0.3.3") {
			t.Error("the next Apply did not complete")
		}
	}
}

// TestFailureFailsClosed checks that a pod that loses its permission is shut out of the other
// endpoints, although one endpoint cannot be written.
func TestFailureFailsClosed(t *testing.T) {
	n, first, second := two(t, hns.Server2022, bridgeConfig())
	n.apply(both(first, second, "10.0.3.3", "10.0.3.4"))
	bad := n.hnsID(first.ID)
	n.failing(func(op, id string) bool { return op == "ModifyEndpoint" && id == bad }, hns.CodeInvalidPolicy)
	next := both(first, second, "10.0.3.4")
	other := *next.Policy.Tables[model.TableID{1}] // the first endpoint gets another table
	other.ID = model.TableID{2}
	other.Sides[1].Default = other.Sides[0].Default
	next.Policy.Tables[other.ID] = &other
	e := next.Policy.Endpoints[first.ID]
	e.Table = other.ID
	next.Policy.Endpoints[first.ID] = e
	if _, err := n.backend.Apply(ctx, next); !dataplane.Concerns(err, first.ID) {
		t.Fatalf("error %v", err)
	}
	if n.passes(second.ID, "10.0.3.3") || !n.passes(second.ID, "10.0.3.4") {
		t.Errorf("the pod that lost its permission passes: %t; the other %t", n.passes(second.ID, "10.0.3.3"), n.passes(second.ID, "10.0.3.4"))
	}
}

// TestSetFails checks that endpoints that need a failed set keep their previous lists, and are
// reported.
func TestSetFails(t *testing.T) {
	n, first, second := two(t, hns.Server2022, bridgeConfig())
	n.apply(both(first, second, "10.0.3.3"))
	n.failing(func(op, _ string) bool { return op == "ModifyNetwork" }, hns.CodeInvalidPolicy)
	_, err := n.backend.Apply(ctx, both(first, second, "10.0.3.3", "10.0.3.4"))
	if !dataplane.Concerns(err, first.ID) || !dataplane.Concerns(err, second.ID) || !n.passes(first.ID, "10.0.3.3") || n.passes(first.ID, "10.0.3.4") {
		t.Errorf("error %v", err)
	}
	n.fake.Before(nil)
	n.apply(both(first, second, "10.0.3.3", "10.0.3.4"))
	if !n.passes(first.ID, "10.0.3.4") {
		t.Error("the next Apply did not complete")
	}
}

// TestEndpointGoneDuringApply checks that Apply succeeds if an endpoint is removed meanwhile.
func TestEndpointGoneDuringApply(t *testing.T) {
	for _, v := range []hns.Version{hns.Server2019, hns.Server2022} {
		n, first, second := two(t, v, bridgeConfig())
		gone := n.hnsID(first.ID)
		n.fake.Before(func(op, id string) error {
			if op == "ModifyEndpoint" && id == gone {
				n.fake.Before(nil)
				if err := n.fake.DeleteEndpoint(ctx, gone); err != nil {
					t.Error(err)
				}
			}
			return nil
		})
		n.apply(both(first, second, "10.0.3.3"))
		if !n.passes(second.ID, "10.0.3.3") {
			t.Error("the other endpoint was not written")
		}
		n.apply(both(first, second, "10.0.3.3")) // the State still names it
	}
}

// TestHangEndsAtTheDeadline checks that Apply ends although HNS does not answer one write.
func TestHangEndsAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := bridgeConfig()
		c.CallDeadline = 100 * time.Millisecond
		n, first, second := two(t, hns.Server2022, c)
		release := make(chan struct{})
		hung := n.hnsID(first.ID)
		n.fake.Before(func(op, id string) error {
			if op == "ModifyEndpoint" && id == hung {
				<-release
			}
			return nil
		})
		start := time.Now()
		_, err := n.backend.Apply(ctx, both(first, second, "10.0.3.3"))
		if !errors.Is(err, hns.ErrRetry) || time.Since(start) > 5*time.Second || dataplane.Concerns(err, second.ID) || !n.passes(second.ID, "10.0.3.3") {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
		n.fake.Before(nil)
		close(release)
		n.settles(both(first, second, "10.0.3.3"))
		if !n.passes(first.ID, "10.0.3.3") {
			t.Error("the next Apply did not complete")
		}
	})
}

// TestAcceptedButNotStored checks that Apply notices if HNS reports success but stores something
// else.
func TestAcceptedButNotStored(t *testing.T) {
	n, first, second := two(t, hns.Server2022, bridgeConfig())
	id := n.hnsID(first.ID)
	n.fake.After(func(op, at string) error {
		if op == "ModifyEndpoint" && at == id {
			n.fake.After(nil)
			if _, err := n.fake.ModifyEndpoint(ctx, id, hns.Update, openACLs()[0].Policy()); err != nil {
				t.Error(err)
			}
		}
		return nil
	})
	_, err := n.backend.Apply(ctx, both(first, second, "10.0.3.3"))
	if !dataplane.Concerns(err, first.ID) || dataplane.Concerns(err, second.ID) {
		t.Errorf("error %v", err)
	}
	n.apply(both(first, second, "10.0.3.3"))
	if n.passes(first.ID, "10.0.3.9") {
		t.Error("the list of another process is still in force")
	}
}

// TestPeerChurnWritesNoACL checks that on HNS 13 new and deleted peers modify no endpoint. On older
// versions they modify only endpoints that name them.
func TestPeerChurnWritesNoACL(t *testing.T) {
	for v, want := range map[hns.Version]int{hns.Server2019: 40, hns.Server2022: 0, hns.Server2025: 0} {
		n, first, second := two(t, v, bridgeConfig())
		n.apply(both(first, second, "10.0.3.3"))
		n.fake.ForgetCalls()
		for i := range 20 {
			n.apply(both(first, second, "10.0.3.3", fmt.Sprintf("10.0.3.%d", 10+i)))
		}
		if got := n.count("ModifyEndpoint"); got != want {
			t.Errorf("hns %s: %d endpoints written, want %d", v, got, want)
		}
		n.fake.ForgetCalls()
		n.apply(both(first, second)) // the last peer is deleted too
		n.start()
		n.apply(both(first, second))
		n.apply(both(first, second, "10.0.3.77"))
		if got := n.count("ModifyEndpoint"); want == 0 && got != 0 {
			t.Errorf("hns %s: %d endpoints written when there was no peer for a while", v, got)
		}
		if !n.passes(first.ID, "10.0.3.77") || n.passes(first.ID, "10.0.3.3") {
			t.Error("wrong verdict at the end")
		}
	}
}
