// SPDX-License-Identifier: Apache-2.0

package query

import (
	"io"
	"testing"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/clitest"
	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/world"
)

// questions are the measured operations on a cluster, by name.
func questions(t *testing.T, size world.Scale) map[string]func() {
	t.Helper()
	files := size.Manifests()
	s, opened := clitest.Snapshot(t, files), clitest.Snapshot(t, world.EditManifests(files, nil, 5))
	var nodes []*model.Node
	for _, name := range []string{"node-1", "node-2", "node-3"} {
		n, _ := s.Nodes.Get(name)
		nodes = append(nodes, n)
	}
	return map[string]func(){
		"diff of one edit": func() {
			if r := compareVersions(reach.New(s, opened), s, opened, false); len(r.Changes) == 0 {
				t.Error("diff: no changes")
			}
		},
		"diff of equal versions": func() {
			if r := compareVersions(reach.New(s, s), s, s, false); len(r.Changes) > 0 {
				t.Error("diff: changes")
			}
		},
		"matrix of 3 namespaces": func() {
			p := reach.New(s)
			o := matrixOptions{namespaces: []string{"ns-1", "ns-2", "ns-3"}}
			m := newMatrix(p, nil)
			m.rows = o.choose(p.Groups(false), nil)
			m.columns = m.rows
			if err := m.writeCSV(io.Discard); err != nil || len(m.rows) < 50 {
				t.Errorf("matrix: %d rows, %v", len(m.rows), err)
			}
		},
		"compile of 3 nodes": func() {
			for _, n := range nodes {
				if err := reportNode(s, n).write(io.Discard, true); err != nil {
					t.Error(err)
				}
			}
		},
	}
}

// TestCostGrowsWithTheCluster measures compile for each node, diff of an edit of one
// namespace, and a matrix of a few namespaces.
func TestCostGrowsWithTheCluster(t *testing.T) {
	small, large := world.Scale{Pods: 300, Policies: 60, Seed: 1}, world.Scale{Pods: 1200, Policies: 240, Seed: 1}
	clitest.Growth(t, questions(t, small), questions(t, large))
}
