// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"testing"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/clitest"
	"github.com/isthmus-net/isthmus/common/analysis/cells"
	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/test/world"
)

// TestCostGrowsWithTheCluster measures verify for each node.
func TestCostGrowsWithTheCluster(t *testing.T) {
	verify := func(size world.Scale) map[string]func() {
		s := clitest.Snapshot(t, size.Manifests())
		endpoints, reference := engine.Endpoints(s), cells.NewReference(s)
		return map[string]func(){"verify of 3 nodes": func() {
			for _, name := range []string{"node-1", "node-2", "node-3"} {
				v, err := verifyNode(context.Background(), s, name, endpoints[name], reference, len(endpoints), nil)
				if err != nil || v.Differ > 0 || v.Cells == 0 {
					t.Errorf("verify: %d cells, differ=%d, %v", v.Cells, v.Differ, err)
				}
			}
		}}
	}
	clitest.Growth(t, verify(world.Scale{Pods: 300, Policies: 60, Seed: 1}), verify(world.Scale{Pods: 1200, Policies: 240, Seed: 1}))
}
