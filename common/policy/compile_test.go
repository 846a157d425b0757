// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/test/world"
)

var shapes = []world.Shape{
	{Pods: 6, Policies: 3},
	{Pods: 10, Policies: 8, IPv6: true},
	{Pods: 8, Policies: 8, Tiers: true},
	{Pods: 8, Policies: 10, Tiers: true, IPv6: true},
}

// compare asks the reference and the compiled State about every flow that
// could tell them apart.
func compare(t *testing.T, s *model.Snapshot, node string, state *model.State) (cells int) {
	t.Helper()
	reference := policy.NewEvaluator(s)
	addrs, ports := world.Probes(s)
	for _, p := range s.Pods.All() {
		if p.Node != node || !p.Policed() {
			continue
		}
		for _, d := range model.Directions {
			for _, a := range addrs {
				for _, at := range ports {
					want := reference.Endpoint(p, d, a, at.Protocol, at.Port)
					got := state.Decide(world.EndpointID(p), d, a, at.Protocol, at.Port)
					cells++
					if want.Verdict != got.Verdict || want.Cause.Reason != got.Cause.Reason {
						t.Fatalf("%s %s %s %s/%d: reference %s, table %s", p.PodID, d, a, at.Protocol, at.Port, want, got)
					}
				}
			}
		}
	}
	return cells
}

func TestCompileEqualsEvaluate(t *testing.T) {
	cells, seeds := 0, uint64(60)
	if testing.Short() {
		seeds = 20
	}
	for i, shape := range shapes {
		for seed := range seeds {
			s := world.Random(seed, shape)
			for _, node := range []string{"node1", "node2"} {
				t.Run(fmt.Sprintf("shape%d/%d/%s", i, seed, node), func(t *testing.T) {
					state, unsupported := policy.Compile(policy.Input{Snapshot: s, Node: node, Endpoints: world.Endpoints(s, node)})
					if len(unsupported) > 0 {
						t.Fatal(unsupported)
					}
					cells += compare(t, s, node, state)
				})
			}
		}
	}
	t.Logf("cells=%d", cells)
}
