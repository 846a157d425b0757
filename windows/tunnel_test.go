// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"net/netip"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestTunnelFromPod checks that no pod of an overlay network sends to the port of tunnels, whatever policy allows:
// the node would masquerade such packets, and others would believe the addresses in them. Pods of other networks may. The rule is
// written once, a restart keeps it, and it holds beside deny lists.
func TestTunnelFromPod(t *testing.T) {
	everyHNS(t, func(t *testing.T, n *node) {
		specs := []dataplane.EndpointSpec{n.spec("c1", "10.0.1.7"), n.spec("c2", "10.0.1.8")}
		for _, s := range specs {
			n.add(s)
		}
		open := clusterState(specs)
		check := func(what string, s *model.State) {
			t.Helper()
			for _, reading := range hns.Readings() {
				for _, to := range []string{"192.168.0.2", "10.0.3.3", "8.8.8.8"} {
					send := func(p model.Protocol, port uint16) bool {
						return n.send(specs[0].ID, model.Egress, netip.MustParseAddr(to), p, port, reading)
					}
					if tunneled := send(model.UDP, 4789); tunneled == (n.config.Mode == windows.Overlay) {
						t.Fatalf("%s: tunneled packets to %s pass: %t (%s)\n%s", what, to, tunneled, reading, n.fake.Dump())
					}
					if !send(model.UDP, 4788) || !send(model.TCP, 4789) {
						t.Fatalf("%s: other packets to %s are dropped (%s)\n%s", what, to, reading, n.fake.Dump())
					}
				}
			}
			if drift, err := n.backend.Audit(ctx, s); err != nil || len(drift) > 0 {
				t.Errorf("%s: audit %v, %v", what, drift, err)
			}
		}
		n.apply(open)
		check("open", open)
		if decisions, err := n.backend.ReadDecisions(ctx); err != nil || len(decisions.Problems) > 0 {
			t.Errorf("decisions: %v, %v", decisions.Problems, err)
		}
		writes := n.count("ModifyEndpoint")
		n.start()
		n.apply(open)
		check("restarted", open)
		if n.count("ModifyEndpoint") != writes {
			t.Error("equal lists are written again")
		}
		denied := denying(open, "10.0.3.3/32")
		n.applyDenying(denied)
		check("beside a deny list", denied)
		n.apply(open)
		check("after a deny list", open)
	})
}

// TestTunnelRuleIsRepaired checks that the audit finds the loss of the rule, as on a node whose agent did not have it yet, and
// that Apply writes it.
func TestTunnelRuleIsRepaired(t *testing.T) {
	n := newNode(t, hns.Server2022, overlayConfig())
	spec := n.spec("c1", "10.0.1.7")
	n.add(spec)
	s := clusterState([]dataplane.EndpointSpec{spec})
	n.apply(s)
	e := n.stored(spec.ID)
	whole, err := e.ACLs()
	if err != nil {
		t.Fatal(err)
	}
	var rest []hns.ACL
	for _, a := range whole {
		if a.RemotePorts != "4789" {
			rest = append(rest, a)
		}
	}
	n.changeACLs(n.name(spec.ID), rest...)
	if drift, err := n.backend.Audit(ctx, s); err != nil || len(drift) != 1 || drift[0].Endpoint != spec.ID || !drift[0].Open {
		t.Errorf("audit: %v, %v", drift, err)
	}
	n.apply(s)
	if n.send(spec.ID, model.Egress, netip.MustParseAddr("192.168.0.2"), model.UDP, 4789, hns.Reading{}) {
		t.Errorf("tunneled packets pass\n%s", n.fake.Dump())
	}
}
