// SPDX-License-Identifier: Apache-2.0

package foreign_test

import (
	"os"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestFailedDeny checks an endpoint on which ADD, or the repair of one without ACLs, cannot deny everything. It stays
// known and is reported, the agent closes it as soon as HNS accepts that, and DEL forgets it.
func TestFailedDeny(t *testing.T) {
	for _, added := range []bool{false, true} {
		n := newNode(t, hns.L2Bridge)
		s := spec("web", "10.1.0.5", n.fake.AddNamespace())
		id := n.make("web", "10.1.0.5", s.NetNS, theirs()...)
		if added {
			n.add(s)
			n.apply(state(s))
			if _, err := n.fake.ModifyEndpoint(ctx, id, hns.Update, theirs()...); err != nil {
				t.Fatal(err)
			}
		}
		writes := n.failWrites()
		if _, err := n.backend.AddEndpoint(ctx, s); hns.Code(err) != hns.CodeUnexpected {
			t.Fatalf("added %t: %v", added, err)
		}
		n.unpoliced(s)
		for range 2 {
			if list, err := n.backend.Endpoints(ctx); err != nil || len(list) != 1 || list[0].ID != s.ID || !list[0].Unenforced {
				t.Errorf("added %t: endpoints %+v, %v", added, list, err)
			}
			if f := n.backend.Faults(); len(f) != 1 || !strings.Contains(f[0], "NOT enforced: write") {
				t.Errorf("added %t: faults %v", added, f)
			}
			before := *writes
			if _, err := n.backend.Idle(ctx); err != nil || *writes == before {
				t.Errorf("added %t: Idle makes %d writes to deny it, %v", added, *writes-before, err)
			}
		}
		n.fake.Before(nil)
		if _, err := n.backend.Idle(ctx); err != nil || len(n.backend.Faults()) > 0 {
			t.Errorf("added %t: %v, faults %v", added, err, n.backend.Faults())
		}
		n.want(s, "")
		n.add(s)
		n.want(s, "")
		if n.apply(state(s)); len(n.backend.Faults()) > 0 {
			t.Errorf("added %t: faults %v", added, n.backend.Faults())
		}
		n.want(s, "in out")
		if err := n.backend.DeleteEndpoint(ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		n.want(s, "")
		if list, err := n.backend.Endpoints(ctx); err != nil || len(list) > 0 {
			t.Errorf("added %t: left %+v, %v", added, list, err)
		}
	}
}

// failWrites makes writes of endpoints fail, and counts them.
func (n *node) failWrites() (writes *int) {
	writes = new(int)
	n.fake.Before(func(op, _ string) error {
		if op == "ModifyEndpoint" {
			*writes++
			return hns.NewError(op, hns.CodeUnexpected, "injected")
		}
		return nil
	})
	return writes
}

// TestRefusedDelaysNoOther: after an error of Idle the agent waits half a minute. One endpoint that cannot have its policy must not
// give endpoints that their plugin makes again that time without policy. It is a fault until it is repaired. Only an HNS that does not
// answer is left alone.
func TestRefusedDelaysNoOther(t *testing.T) {
	for what, fail := range map[string]func(n *node, id string){
		"an ACL of another program leaves no room": func(n *node, id string) {
			if _, err := n.fake.ModifyEndpoint(ctx, id, hns.Add, acl("early", hns.In, hns.Allow, 100, "10.9.0.0/16")); err != nil {
				t.Fatal(err)
			}
		},
		"hns refuses the list": func(n *node, id string) {
			if _, err := n.fake.ModifyEndpoint(ctx, id, hns.Update, theirs()...); err != nil {
				t.Fatal(err)
			}
			n.fake.Before(func(op, object string) error {
				if op == "ModifyEndpoint" && strings.EqualFold(object, id) {
					return hns.NewError(op, hns.CodeInvalidPolicy, "injected")
				}
				return nil
			})
		},
	} {
		t.Run(what, func(t *testing.T) {
			n := newNode(t, hns.L2Bridge)
			refused, other := n.chained("refused", "10.1.0.5", theirs()...), n.chained("other", "10.1.0.6", theirs()...)
			n.apply(state(refused, other))
			ids := make(map[string]string)
			list, _ := n.fake.Endpoints(ctx, n.network)
			for _, e := range list {
				ids[e.Name] = e.ID
			}
			fail(n, ids["refused"])
			for range 2 {
				if _, err := n.backend.Idle(ctx); err != nil {
					t.Errorf("the agent waits: %v", err)
				}
				if f := n.backend.Faults(); len(f) != 1 || !strings.Contains(f[0], "endpoint refused:eth0: policy is NOT enforced") {
					t.Errorf("faults %q", f)
				}
			}
			if err := n.fake.DeleteEndpoint(ctx, ids["other"]); err != nil {
				t.Fatal(err)
			}
			n.make("other", "10.1.0.6", other.NetNS, theirs()...)
			n.unpoliced(other)
			if _, err := n.backend.Idle(ctx); err != nil {
				t.Errorf("the agent waits: %v", err)
			}
			n.want(other, "in out")
		})
	}
}

// TestSilentHNSIsLeftAlone: the agent waits after a call that HNS does not answer.
func TestSilentHNSIsLeftAlone(t *testing.T) {
	n := newNode(t, hns.L2Bridge)
	n.apply(state(n.chained("web", "10.1.0.5", theirs()...)))
	list, _ := n.fake.Endpoints(ctx, n.network)
	if _, err := n.fake.ModifyEndpoint(ctx, list[0].ID, hns.Update, theirs()...); err != nil {
		t.Fatal(err)
	}
	for _, code := range []uint32{hns.CodeTimeout, hns.CodeBusy} {
		n.fake.Before(func(op, _ string) error {
			if op == "ModifyEndpoint" {
				return hns.NewError(op, code, "injected")
			}
			return nil
		})
		if _, err := n.backend.Idle(ctx); hns.Code(err) != code {
			t.Errorf("code %#x: the agent does not wait: %v", code, err)
		}
	}
}

// TestFailedDenyOfSuccessor checks an endpoint that passes to another pod and cannot be denied at first. The other pod
// never has the list of the earlier one.
func TestFailedDenyOfSuccessor(t *testing.T) {
	n := newNode(t, hns.L2Bridge)
	s := n.chained("web", "10.1.0.5", theirs()...)
	n.apply(state(s))
	n.want(s, "in out")
	list, err := n.backend.Interfaces(ctx)
	if err != nil || len(list) != 1 {
		t.Fatalf("interfaces %v, %v", list, err)
	}
	next := spec("next", "10.1.0.5", list[0].Handle)
	n.failWrites()
	if _, err := n.backend.AddEndpoint(ctx, next); err == nil {
		t.Fatal("an endpoint was added that cannot be denied")
	}
	n.fake.Before(nil)
	n.add(next)
	n.want(s, "") // the endpoint has the name of the earlier pod
}

// TestCloseOnFullDisk checks that an interface is closed although that cannot be recorded.
func TestCloseOnFullDisk(t *testing.T) {
	n := newNode(t, hns.L2Bridge)
	s := spec("web", "10.1.0.5", n.fake.AddNamespace())
	n.make("web", "10.1.0.5", s.NetNS, theirs()...)
	list, err := n.backend.Interfaces(ctx)
	if err != nil || len(list) != 1 {
		t.Fatalf("interfaces %v, %v", list, err)
	}
	if err := os.Mkdir(n.file+".new", 0o700); err != nil { // no file can be written
		t.Fatal(err)
	}
	if err := n.backend.CloseInterface(ctx, list[0].Handle, "claim"); err == nil {
		t.Error("the lost record is not reported")
	}
	n.want(s, "")
}
