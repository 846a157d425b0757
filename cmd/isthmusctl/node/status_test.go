// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// TestCountedFlows: status has numbers of those flows only that the data path counts.
func TestCountedFlows(t *testing.T) {
	n := newNode(t)
	for counted, want := range map[model.FlowReports][]string{
		model.AllFlows:    {"Ingress: 7 flows allowed, 12 denied", "Egress: 0 flows allowed, 0 denied"},
		model.DeniedFlows: {"Ingress: 12 flows denied; allowed ones are not counted", "Egress: 0 flows denied; allowed ones are not counted"},
		model.NoFlows:     {"Ingress: flows are not counted", "Egress: flows are not counted"},
	} {
		c := dataplane.Counters{Counted: counted}
		c.Verdicts[model.Ingress] = [2]uint64{model.Deny: 12, model.Allow: 7}
		n.fake.SetCounters(c)
		_, out, errs := ctl("status", "-o", "wide", "--socket", n.socket)
		for _, line := range want {
			if !strings.Contains(strings.Join(strings.Fields(out), " "), line) {
				t.Errorf("status has no %q:\n%s%s", line, out, errs)
			}
		}
	}
}
