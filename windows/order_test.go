// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// TestACLsAreWrittenInOrder: if HNS answers in another order, lists are still written by priority, also those that are
// sent again because something else changes. Otherwise a rule could open what a later one closes, if HNS applies them
// one by one.
func TestACLsAreWrittenInOrder(t *testing.T) {
	n := &node{t: t, fake: hnstest.NewFake(hns.Server2022), config: bridgeConfig()}
	n.fake.Reorder = true
	n.start()
	spec := n.spec("web", "10.0.1.5")
	n.add(spec)
	s := peerState(spec, "10.0.2.1", "10.0.2.2")
	n.apply(s)
	n.fake.ForgetCalls()
	n.applyDenying(denying(s, "203.0.113.0/24")) // the list of the policy stays, and is sent again
	list, err := n.fake.AllEndpoints(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		for _, p := range e.Policies {
			if e.Name == n.name(spec.ID) && p.Is(hns.TypeOutBoundNAT) {
				if _, err := n.fake.ModifyEndpoint(ctx, e.ID, hns.Remove, p); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	n.add(spec) // repairs the policy that is missing
	updates := 0
	for _, c := range n.fake.Calls() {
		if c.Op != "ModifyEndpoint" || c.Code != 0 {
			continue
		}
		var request struct{ Policies []hns.Policy }
		if err := json.Unmarshal([]byte(c.Request), &request); err != nil {
			t.Fatal(err)
		}
		e := hns.Endpoint{Policies: request.Policies}
		list, err := e.ACLs()
		if err != nil || len(list) < 4 {
			continue
		}
		updates++
		list = slices.DeleteFunc(list, func(a hns.ACL) bool { return a.RuleType == hns.Host })
		if !slices.IsSortedFunc(list, func(x, y hns.ACL) int { return int(x.Priority) - int(y.Priority) }) {
			t.Errorf("written out of order: %s", c.Request)
		}
	}
	if updates < 2 {
		t.Errorf("%d writes of ACLs, want 2 or more", updates)
	}
}
