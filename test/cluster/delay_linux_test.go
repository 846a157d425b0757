// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	directory "github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/test/cluster"
)

const delayManifests = `
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: test, labels: {app: client}}
spec: {containers: [{name: main}]}
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: test, labels: {app: server}}
spec: {containers: [{name: main, ports: [{name: udp, containerPort: 7000, protocol: UDP}]}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: isolated, namespace: test}
spec: {podSelector: {matchLabels: {app: server}}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server, namespace: test}
spec: {podSelector: {matchLabels: {app: server}}, ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]}
`

const (
	// mostDelay is how long a change may take from its arrival at the agents until the last packet meets it: ten
	// times what make bench-node measures at the 99th percentile.
	mostDelay = 160 * time.Millisecond
	// handOvers is how often a change waits until the kernel runs another thread: the event of the directory, its
	// timer, two readings, the loop, its timer, the attempt to connect, its server and the answer.
	handOvers = 10
	// busyMachine is the lateness from which one of all edits may exceed the bound.
	busyMachine = 5 * time.Millisecond
)

// TestEnforcementDelay bounds how fast edits of a policy and of labels stop and resume flows between nodes. The agents
// wait for a directory to be quiet before they read it; the bound does not include that. On a busy machine each
// hand-over may take as long as a thread that only sleeps was late during the same edit.
func TestEnforcementDelay(t *testing.T) {
	c, _ := startCluster(t, delayManifests, cluster.Config{Linux: 2})
	flows, err := c.Flows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	quiet := directory.DefaultDirectoryConfig("").Debounce
	var measured []time.Duration
	exceeded, followed := 0, 0 // edits that took longer than the bound, and edits after which connections still opened, and then stopped
	for range 8 {
		for what, edit := range map[string]func(context.Context, []*cluster.Flow) (*cluster.Edit, error){"policy": c.EditPolicy, "labels": c.EditLabel} {
			late := lateness(t.Context())
			e, err := edit(t.Context(), flows)
			busy := late()
			most := quiet + mostDelay + handOvers*busy
			if err != nil {
				t.Fatal(err)
			}
			if e == nil {
				t.Fatalf("no flow depends on the %s: nothing is measured", what)
			}
			if e.Stopped > 0 {
				followed++
			}
			for _, took := range []time.Duration{e.Stopped, e.Resumed} {
				measured = append(measured, took)
				if took > most {
					exceeded++
				}
				if took > most && (busy < busyMachine || exceeded > 1) {
					t.Fatalf("%s: stopped after %s, resumed after %s; want at most %s", e.What, e.Stopped, e.Resumed, most)
				}
			}
			if !e.Cut || !e.Continued {
				t.Errorf("%s: the open connection stopped: %t, continued afterwards: %t", e.What, e.Cut, e.Continued)
			}
		}
	}
	slices.Sort(measured)
	t.Logf("edits: measured=%d p50=%s most=%s; the directory was quiet for %s of each", len(measured), measured[len(measured)/2], measured[len(measured)-1], quiet)
	// On a busy machine every attempt of an edit may time out: such an edit measures nothing.
	if edits := len(measured) / 2; followed*2 < edits {
		t.Errorf("connections stopped before %d of %d edits: these measure nothing", edits-followed, edits)
	}
}

// lateness starts a thread that sleeps for short times. The result ends it, and returns how late it was at most.
func lateness(ctx context.Context) func() time.Duration {
	ctx, cancel := context.WithCancel(ctx)
	var worst time.Duration
	var done sync.WaitGroup
	done.Go(func() {
		const nap = 2 * time.Millisecond
		for ctx.Err() == nil {
			began := time.Now()
			time.Sleep(nap)
			worst = max(worst, time.Since(began)-nap)
		}
	})
	return func() time.Duration {
		cancel()
		done.Wait()
		return worst
	}
}
