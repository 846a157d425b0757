// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"fmt"
	"testing"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestInOrder: ACLs are last and by priority, those of the type Host after all others. Other policies keep their order,
// and equal priorities theirs.
func TestInOrder(t *testing.T) {
	acl := func(id string, kind hns.RuleType, priority uint16) hns.Policy {
		return hns.ACL{ID: id, Action: hns.Block, Direction: hns.In, RuleType: kind, Priority: priority}.Policy()
	}
	other := func(n uint32) hns.Policy { return hns.MakePolicy(hns.TypeOutBoundNAT, hns.OutBoundNAT{Flags: n}) }
	got := hns.InOrder([]hns.Policy{acl("e", hns.Host, 0), acl("d", "switch", 1002), other(1), acl("b", hns.Switch, 1000), acl("f", "HOST", 0), acl("c", hns.Switch, 1000), other(2), acl("a", hns.Switch, 100)})
	var text string
	for _, p := range got {
		var a hns.ACL
		var nat hns.OutBoundNAT
		if p.Is(hns.TypeACL) && p.Decode(&a) == nil {
			text += a.ID
		} else if p.Decode(&nat) == nil {
			text += fmt.Sprint(nat.Flags)
		}
	}
	if text != "12abcdef" {
		t.Errorf("order %s", text)
	}
}
