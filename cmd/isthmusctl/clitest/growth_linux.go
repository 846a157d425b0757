// SPDX-License-Identifier: Apache-2.0

package clitest

import (
	"maps"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/model"
)

// maxGrowth is the accepted growth of processor time for a cluster of four times the size.
// An algorithm that visits every pair of pods or of policies takes sixteen times as much.
// The margin allows for cache misses.
const maxGrowth = 9.0

// Snapshot reads the manifests of a large cluster.
func Snapshot(t *testing.T, files map[string][]byte) *model.Snapshot {
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

// Growth compares operations on a small cluster with the same operations, by name, on a
// cluster of four times its size. Each should cost about four times as much. The minimum of
// several runs counts; a busy machine gets more runs. The garbage collector does not run in
// between: a collection costs as much as the whole live heap, and only the larger cluster
// would start one.
func Growth(t *testing.T, small, large map[string]func()) {
	t.Helper()
	const leastRounds, mostRounds = 3, 40
	asked := [2]map[string]func(){small, large}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for name := range small {
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
		t.Logf("%s: %v, and %v for four times the cluster, %.1f times", name, cost[0], cost[1], growth)
		if growth > maxGrowth {
			t.Errorf("%s: four times the cluster costs %.1f times as much, want at most %g", name, growth, maxGrowth)
		}
	}
}
