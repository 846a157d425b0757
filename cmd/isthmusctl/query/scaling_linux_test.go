// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"maps"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/analysis/cells"
	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/world"
)

// maxGrowth is the accepted growth of processor time for a cluster of four times the size.
// An algorithm that visits every pair of pods or of policies takes sixteen times as much.
// The margin allows for cache misses.
const maxGrowth = 9.0

// clusterOf reads the manifests of a large cluster.
func clusterOf(t *testing.T, files map[string][]byte) *model.Snapshot {
	t.Helper()
	var list []manifests.File
	for _, name := range slices.Sorted(maps.Keys(files)) {
		list = append(list, manifests.File{Name: name, Data: files[name]})
	}
	o, _, errs := manifests.ParseFiles(list, manifests.DefaultLimits())
	if len(errs) > 0 {
		t.Fatal(errs[0])
	}
	return o.Snapshot()
}

// processorTime is the time that the threads of this process have run. The clock is exact;
// getrusage(2) divides the time between user and kernel mode by samples, every 4 ms.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}

// questions are the measured operations on a cluster, by name.
func questions(t *testing.T, size world.Scale) map[string]func() {
	t.Helper()
	files := size.Manifests()
	s, opened := clusterOf(t, files), clusterOf(t, world.EditManifests(files, nil, 5))
	endpoints, reference := engine.Endpoints(s), cells.NewReference(s)
	var nodes []*model.Node
	for _, name := range []string{"node-1", "node-2", "node-3"} {
		n, _ := s.Nodes.Get(name)
		nodes = append(nodes, n)
	}
	return map[string]func(){
		"diff of one edit": func() {
			if r := compareVersions(reach.New(s, opened)); len(r.Changes) == 0 {
				t.Error("diff: no changes")
			}
		},
		"diff of equal versions": func() {
			if r := compareVersions(reach.New(s, s)); len(r.Changes) > 0 {
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
		"verify of 3 nodes": func() {
			for _, n := range nodes {
				v, err := verifyNode(context.Background(), s, n.Name, endpoints[n.Name], reference, len(endpoints), nil)
				if err != nil || v.Differ > 0 || v.Cells == 0 {
					t.Errorf("verify: %d cells, differ=%d, %v", v.Cells, v.Differ, err)
				}
			}
		},
	}
}

// TestCostGrowsWithTheCluster compares a cluster with one of four times its size, for
// which each operation should cost about four times as much. The operations are: compile
// and verify for each node, diff of an edit of one namespace, and a matrix of a few
// namespaces. The minimum of several runs counts; a busy machine gets more runs. The garbage
// collector does not run in between: a collection costs as much as the whole live heap, and
// only the larger cluster would start one.
func TestCostGrowsWithTheCluster(t *testing.T) {
	const leastRounds, mostRounds = 3, 40
	small, large := world.Scale{Pods: 300, Policies: 60, Seed: 1}, world.Scale{Pods: 1200, Policies: 240, Seed: 1}
	asked := [2]map[string]func(){questions(t, small), questions(t, large)}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for name := range asked[0] {
		cost := [2]time.Duration{math.MaxInt64, math.MaxInt64}
		growth := math.Inf(1)
		for round := 0; round < mostRounds && (round < leastRounds || growth > maxGrowth); round++ {
			for i := range asked {
				runtime.GC()
				began := processorTime(t)
				asked[i][name]()
				cost[i] = min(cost[i], processorTime(t)-began)
			}
			growth = float64(cost[1]) / float64(cost[0])
		}
		t.Logf("%s: %v for %d pods, %v for %d, %.1f times", name, cost[0], small.Pods, cost[1], large.Pods, growth)
		if growth > maxGrowth {
			t.Errorf("%s: four times the cluster costs %.1f times as much, want at most %g", name, growth, maxGrowth)
		}
	}
}
