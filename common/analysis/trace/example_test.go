// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"fmt"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/analysis/trace"
	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/model"
)

// Pod a opens a connection to pod b of the same node, at a port that the policy of b accepts. The maps of the
// node deny it, because an entry is damaged.
func ExampleFlow() {
	b := bundle()
	b.Drift = []inspect.Drift{{Object: "rows", Detail: "row 3 does not hold the verdicts of its ports"}}
	f := model.Flow{Src: netip.MustParseAddr("10.0.1.2"), Dst: netip.MustParseAddr("10.0.1.3"), Protocol: model.TCP, Port: 80}
	installed := func(_ model.EndpointID, d model.Direction, _ netip.Addr, _ model.Protocol, _ uint16) (model.Verdict, string, error) {
		if d == model.Ingress {
			return model.Deny, "row 3", nil
		}
		return model.Allow, "", nil
	}
	r := trace.Flow(b, b.Cluster.Objects().Snapshot(), f, installed)
	fmt.Printf("intended %s, installed %s, drift %t\n", r.Intended, r.Installed, r.Drift)
	for _, s := range r.Steps {
		fmt.Printf("%s of %s: intended %q, installed %q\n", s.What, s.Where, s.Intended, s.Installed)
	}
	// Output:
	// intended allow, installed deny, drift true
	// attachment of shop/a: intended "", installed ""
	// egress policy of shop/a: intended "allow", installed "allow"
	// path of n1: intended "", installed ""
	// attachment of shop/b: intended "", installed ""
	// ingress policy of shop/b: intended "allow", installed "deny"
}
