// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"

	"github.com/isthmus-net/isthmus/common/model"
)

// Account counts the new flows that a node has decided, by direction and verdict.
type Account [2][2]uint64

// Accounts reads the counters of the Linux nodes, and checks that they include both ends of every tested flow.
// Retries and other traffic only add to them.
func (c *Cluster) Accounts(ctx context.Context, flows []*Flow) (map[string]Account, error) {
	expected := make(map[string]*Account)
	for _, n := range c.Nodes {
		expected[n.Name] = &Account{}
	}
	for _, f := range flows {
		left := f.From.Pod == nil || f.Egress.Verdict == model.Allow
		if p := f.From.Pod; p != nil && !onWindows(p) {
			expected[p.Node.Name][model.Egress][f.Egress.Verdict]++
		}
		if left && !onWindows(f.To) {
			expected[f.To.Node.Name][model.Ingress][f.Ingress.Verdict]++
		}
	}
	found := make(map[string]Account)
	for _, n := range c.Nodes {
		if n.OS == model.Windows {
			continue
		}
		s, err := n.Status(ctx)
		if err != nil {
			return nil, err
		}
		a := Account{model.Ingress: {s.IngressDenied, s.IngressAllowed}, model.Egress: {s.EgressDenied, s.EgressAllowed}}
		found[n.Name] = a
		for _, d := range model.Directions {
			for _, v := range []model.Verdict{model.Deny, model.Allow} {
				if want := expected[n.Name][d][v]; a[d][v] < want {
					return nil, fmt.Errorf("node %s has counted %d new flows %s %s, but %d were sent", n.Name, a[d][v], d, v, want)
				}
			}
		}
	}
	return found, nil
}
