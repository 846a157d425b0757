// SPDX-License-Identifier: Apache-2.0

package aclsim

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestReadingsMustAgree evaluates two rules of one priority, of which one allows and one blocks.
// The reading determines the result. Rules of different priorities are unambiguous.
func TestReadingsMustAgree(t *testing.T) {
	id := model.EndpointID("e")
	rule := func(a hns.Action, priority uint16) hns.ACL {
		return hns.ACL{ID: string(a), Protocols: "256", Action: a, Direction: hns.In, RuleType: hns.Switch, Priority: priority}
	}
	host := rule(hns.Allow, 100)
	host.ID, host.RuleType = "host", hns.Host
	decide := func(list ...hns.ACL) (model.Verdict, error) {
		n := New()
		n.state = &model.State{Policy: model.PolicyState{Endpoints: map[model.EndpointID]model.EndpointState{id: {IPs: []netip.Addr{netip.MustParseAddr("10.0.1.2")}}}}}
		for i := range n.variants {
			n.variants[i].ruleset = &acl.Ruleset{Lists: map[model.EndpointID][]hns.ACL{id: append(list, host)}}
			n.variants[i].rules = make(map[*hns.ACL]*hns.Rules)
		}
		return n.Decide(id, model.Ingress, netip.MustParseAddr("10.0.2.2"), model.TCP, 80)
	}
	if v, err := decide(rule(hns.Allow, 1000), rule(hns.Block, 1001)); v != model.Allow || err != nil {
		t.Errorf("allowed at 1000, blocked at 1001: %s, %v", v, err)
	}
	if v, err := decide(rule(hns.Allow, 1000), rule(hns.Block, 1000)); v != model.Deny || err == nil || !strings.Contains(err.Error(), "tie=") {
		t.Errorf("allowed and blocked at 1000: %s, %v", v, err)
	}
}
