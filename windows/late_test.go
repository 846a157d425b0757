// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

const lateDeadline = 50 * time.Millisecond

// twoLate is a node with two endpoints and a short timeout for calls.
func twoLate(t *testing.T) (n *node, first, second dataplane.EndpointSpec) {
	c := bridgeConfig()
	c.CallDeadline = lateDeadline
	return two(t, hns.Server2022, c)
}

// hold makes the next call with a name and an object hang. The call proceeds when release is called, or the test ends.
func (n *node) hold(call string) (release func()) {
	gate := make(chan struct{})
	var held atomic.Bool
	n.fake.Before(func(op, id string) error {
		if strings.HasPrefix(op+" "+id, call) && held.CompareAndSwap(false, true) {
			<-gate
		}
		return nil
	})
	release = sync.OnceFunc(func() { close(gate) })
	n.t.Cleanup(release)
	return release
}

func (n *node) has(spec dataplane.EndpointSpec) bool {
	return strings.Contains(n.fake.Dump(), n.name(spec.ID))
}

// eventually waits until a condition is true.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

// tries applies and returns the error.
func (n *node) tries(s *model.State) error {
	_, err := n.backend.Apply(ctx, s)
	return err
}

// settles applies the State until that succeeds.
func (n *node) settles(s *model.State) {
	n.t.Helper()
	eventually(n.t, "the state cannot be put in force", func() bool { return n.tries(s) == nil })
}

// TestLateListUndoesNothing checks that a write of ACLs that timed out and takes effect late cannot
// undo a newer one: until it returns, no newer one is made, and the endpoint is reported. Other
// pods are not affected.
func TestLateListUndoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, first, second := twoLate(t)
		n.apply(both(first, second))
		release := n.hold("ModifyEndpoint " + n.hnsID(first.ID))
		began := time.Now()
		opened := both(first, second, "10.0.3.3")
		if err := n.tries(opened); !dataplane.Concerns(err, first.ID) {
			t.Fatalf("with a write that hangs: %v", err)
		}
		if took := time.Since(began); took > 20*lateDeadline {
			t.Errorf("took %s", took)
		}
		// The old policy is wanted again, and HNS has it. But a late write is still possible.
		denied := both(first, second)
		for range 3 {
			err := n.tries(denied)
			if !dataplane.Concerns(err, first.ID) || dataplane.Concerns(err, second.ID) {
				t.Fatalf("while the write may land: %v", err)
			}
		}
		third := n.spec("c3", "10.0.1.9")
		began = time.Now()
		n.add(third)
		if took := time.Since(began); took > lateDeadline {
			t.Errorf("another pod waited %s", took)
		}
		release()
		n.settles(denied)
		if n.passes(first.ID, "10.0.3.3") {
			t.Errorf("the late write is in force:\n%s", n.fake.Dump())
		}
	})
}

// TestLateSetIsNotUsed checks the time in which a write of a set may still take effect. No list
// that refers to the set counts as in force, and no list gets a new reference to it.
func TestLateSetIsNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, first, second := twoLate(t)
		n.apply(both(first, second, "10.0.3.3"))
		release := n.hold("ModifyNetwork ")
		if err := n.tries(both(first, second, "10.0.3.3", "10.0.3.4")); err == nil {
			t.Fatal("a set that could not be written is in force")
		}
		denied := both(first, second, "10.0.3.3")
		if err := n.tries(denied); !dataplane.Concerns(err, first.ID) || !dataplane.Concerns(err, second.ID) {
			t.Fatalf("while the write may land: %v", err)
		}
		release()
		n.settles(denied)
		if n.passes(first.ID, "10.0.3.4") || !n.passes(first.ID, "10.0.3.3") {
			t.Errorf("the late write is in force:\n%s", n.fake.Dump())
		}
	})
}

// TestLateListGetsNoNewMembers checks a list that may take effect late and refers to a set. No
// member joins that set meanwhile if neither the list's policy nor a newer one allows it.
func TestLateListGetsNoNewMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, first, second := twoLate(t)
		n.apply(both(first, second))
		release := n.hold("ModifyEndpoint " + n.hnsID(first.ID))
		if err := n.tries(both(first, second, "10.0.3.3")); !dataplane.Concerns(err, first.ID) || dataplane.Concerns(err, second.ID) {
			t.Fatalf("with a write that hangs: %v", err)
		}
		n.meetsNoNewcomer(first, second, release)
	})
}

// meetsNoNewcomer writes policy under which the second pod alone has a further peer, while a late list of the first pod, which
// release lets land, refers to the set that the peer would join.
func (n *node) meetsNoNewcomer(first, second dataplane.EndpointSpec, release func()) {
	n.t.Helper()
	only := peerState(second, "10.0.3.3", "10.0.3.4") // everything to the first pod is denied
	if err := n.tries(only); !dataplane.Concerns(err, second.ID) {
		n.t.Errorf("a set is in force that the late list refers to: %v", err)
	}
	release()
	eventually(n.t, "the list never landed", func() bool { return n.passes(first.ID, "10.0.3.3") })
	if n.passes(first.ID, "10.0.3.4") {
		n.t.Errorf("the late list met a newcomer:\n%s", n.fake.Dump())
	}
	n.settles(only)
	if n.passes(first.ID, "10.0.3.3") || !n.passes(second.ID, "10.0.3.4") {
		n.t.Errorf("in the end:\n%s", n.fake.Dump())
	}
}

// TestLateListOfEndedOperation is TestLateListGetsNoNewMembers for two writes that hang. The time of the whole
// operation ends while it waits for the second one, before the call's own deadline.
func TestLateListOfEndedOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, first, second := twoLate(t)
		third := n.spec("c3", "10.0.1.9")
		n.add(third)
		n.apply(both(first, second))
		gates := make(chan chan struct{}, 2)
		n.fake.Before(func(op, id string) error {
			if op == "ModifyEndpoint" && len(gates) < cap(gates) {
				gate := make(chan struct{})
				gates <- gate
				<-gate
			}
			return nil
		})
		defer func() { // of a test that fails
			for len(gates) > 0 {
				close(<-gates)
			}
		}()
		operation, cancel := context.WithTimeout(ctx, 3*lateDeadline/2)
		defer cancel()
		if _, err := n.backend.Apply(operation, both(first, second, "10.0.3.3")); err == nil || operation.Err() == nil || len(gates) != 2 {
			t.Fatalf("%d writes hang: %v", len(gates), err)
		}
		one, two := <-gates, <-gates
		n.fake.Before(nil)
		close(one)
		reached := func(peer string) (count int) {
			for _, spec := range []dataplane.EndpointSpec{first, second} {
				if n.passes(spec.ID, peer) {
					count++
				}
			}
			return count
		}
		eventually(t, "the first list never landed", func() bool { return reached("10.0.3.3") == 1 })
		only := peerState(third, "10.0.3.3", "10.0.3.4") // everything to the other pods is denied
		if err := n.tries(only); !dataplane.Concerns(err, third.ID) {
			t.Errorf("a set is in force that the late list refers to: %v", err)
		}
		close(two)
		eventually(t, "the second list never landed", func() bool { return reached("10.0.3.3") > 0 })
		if reached("10.0.3.4") > 0 {
			t.Errorf("the late list met a newcomer:\n%s", n.fake.Dump())
		}
		n.settles(only)
		if reached("10.0.3.3") > 0 || !n.passes(third.ID, "10.0.3.4") {
			t.Errorf("in the end:\n%s", n.fake.Dump())
		}
	})
}

// TestLateEndpointIsRemoved checks an endpoint whose creation timed out and that appears later. If
// it is no longer wanted it is removed; if it is wanted again it is created once.
func TestLateEndpointIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, again := range []bool{false, true} {
			n, _, _ := twoLate(t)
			before := n.fake.Dump()
			spec := n.spec("c3", "10.0.1.9")
			release := n.hold("CreateEndpoint " + n.name(spec.ID))
			if _, err := n.backend.AddEndpoint(ctx, spec); err == nil {
				t.Fatal("an ADD whose creation hangs has succeeded")
			}
			if again {
				if _, err := n.backend.AddEndpoint(ctx, spec); hns.Code(err) != hns.CodeBusy {
					t.Fatalf("a second creation beside the first: %v", err)
				}
			} else if err := n.backend.DeleteEndpoint(ctx, spec.ID); err != nil {
				t.Fatal(err)
			}
			release()
			eventually(t, "the creation never landed", func() bool { return n.has(spec) })
			eventually(t, "the endpoint stays", func() bool {
				_, err := n.backend.Idle(ctx)
				return err == nil && !n.has(spec)
			})
			n.fake.RemoveNamespace(spec.NetNS)
			if got := n.fake.Dump(); got != before {
				t.Errorf("again %t: left:\n%s", again, got)
			}
			spec.NetNS = n.fake.AddNamespace()
			n.add(spec)
			n.apply(peerState(spec, "10.0.3.3"))
			if !n.send(spec.ID, model.Ingress, netip.MustParseAddr("10.0.3.3"), model.TCP, 80, hns.Reading{}) {
				t.Error("the pod that came again has no policy")
			}
		}
	})
}

// TestLateListOfOtherWrites is TestLateListGetsNoNewMembers for the writes that change other policies and send the
// list with them. The time of the operation ends before the call's own deadline, and another program closes the pod.
func TestLateListOfOtherWrites(t *testing.T) {
	for name, write := range map[string]func(n *node, first, second dataplane.EndpointSpec) func(ctx context.Context) error{
		"outbound NAT": func(n *node, first, second dataplane.EndpointSpec) func(ctx context.Context) error {
			s := both(first, second, "10.0.3.3")
			s.Fabric = clusterState([]dataplane.EndpointSpec{first}, peer(2, model.Linux, "", "10.0.2.0/24")).Fabric
			n.apply(s)
			return func(ctx context.Context) error {
				_, err := n.backend.Idle(ctx)
				if fault := n.natFault(); fault != "" {
					err = errors.Join(err, errors.New(fault))
				}
				return err
			}
		},
		"repeated ADD": func(n *node, first, _ dataplane.EndpointSpec) func(ctx context.Context) error {
			routes := slices.DeleteFunc(n.stored(first.ID).Policies, func(p hns.Policy) bool { return !p.Is(hns.TypeSDNRoute) })
			if _, err := n.fake.ModifyEndpoint(ctx, n.hnsID(first.ID), hns.Remove, routes...); err != nil {
				n.t.Fatal(err)
			}
			return func(ctx context.Context) error { _, err := n.backend.AddEndpoint(ctx, first); return err }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := natConfig()
				c.CallDeadline = 10 * time.Second
				n, first, second := two(t, hns.Server2022, c)
				n.apply(both(first, second, "10.0.3.3"))
				n.apply(both(first, second, "10.0.3.3")) // the lists refer to their set
				if len(n.sets(first)) == 0 {
					t.Fatal("the list refers to no set")
				}
				call, id := write(n, first, second), n.hnsID(first.ID)
				operation, cancel := context.WithCancel(ctx)
				defer cancel()
				gate := make(chan struct{})
				var held atomic.Bool
				n.fake.Before(func(op, of string) error {
					if op == "ModifyEndpoint" && of == id && held.CompareAndSwap(false, true) {
						cancel()
						<-gate
					}
					return nil
				})
				if err := call(operation); err == nil || operation.Err() == nil {
					t.Fatalf("with a write that hangs: %v", err)
				}
				n.changeACLs(n.name(first.ID), acl.DenyAll()...)
				n.meetsNoNewcomer(first, second, func() { close(gate) })
			})
		})
	}
}

// TestOrphanThatStays checks an endpoint of a late call that HNS does not remove. It is reported, and neither an error
// of Idle, which would delay the components, nor a call in each Idle.
func TestOrphanThatStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _, _ := twoLate(t)
		spec := n.spec("c3", "10.0.1.9")
		release := n.hold("CreateEndpoint " + n.name(spec.ID))
		if _, err := n.backend.AddEndpoint(ctx, spec); err == nil {
			t.Fatal("an ADD whose creation hangs has succeeded")
		}
		if err := n.backend.DeleteEndpoint(ctx, spec.ID); err != nil {
			t.Fatal(err)
		}
		release()
		eventually(t, "the creation never landed", func() bool { return n.has(spec) })
		n.failing(func(op, _ string) bool { return op == "DeleteEndpoint" }, hns.CodeUnexpected)
		eventually(t, "nothing is reported", func() bool {
			if _, err := n.backend.Idle(ctx); err != nil {
				t.Fatal(err)
			}
			return strings.Contains(strings.Join(n.backend.Faults(), "\n"), "endpoints that a failed call of hns left are not removed yet")
		})
		calls := len(n.fake.Calls())
		if _, err := n.backend.Idle(ctx); err != nil || len(n.fake.Calls()) != calls {
			t.Errorf("%v, another attempt at once: %v", err, n.fake.Calls()[calls:])
		}
		n.fake.Before(nil)
		n.add(spec) // the pod came again
		if _, err := n.backend.Idle(ctx); err != nil || strings.Contains(strings.Join(n.backend.Faults(), "\n"), "not removed yet") {
			t.Errorf("%v, faults %q", err, n.backend.Faults())
		}
	})
}
