// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/kube"
	"github.com/isthmus-net/isthmus/common/model"
)

// Follower runs a Source and keeps the published snapshots. Its methods fail the test after 20 seconds.
type Follower struct {
	t      *testing.T
	source kube.Source

	mu        sync.Mutex
	snapshots []*model.Snapshot
	publish   chan struct{}
}

// Follow runs a Source until the test ends. The test fails if Run returns an error.
func Follow(t *testing.T, s kube.Source) *Follower {
	t.Helper()
	f := &Follower{t: t, source: s, publish: make(chan struct{}, 1000)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Run(ctx, func(s *model.Snapshot) {
			f.mu.Lock()
			f.snapshots = append(f.snapshots, s)
			f.mu.Unlock()
			f.publish <- struct{}{}
		})
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("run: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("run does not end")
		}
	})
	return f
}

// All returns the published snapshots, oldest first.
func (f *Follower) All() []*model.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]*model.Snapshot(nil), f.snapshots...)
}

// Last returns the last snapshot, or an empty one if none was published.
func (f *Follower) Last() *model.Snapshot {
	if all := f.All(); len(all) > 0 {
		return all[len(all)-1]
	}
	return &model.Snapshot{}
}

// Until waits for a snapshot that satisfies ok, and returns it.
func (f *Follower) Until(what string, ok func(*model.Snapshot) bool) *model.Snapshot {
	f.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		if len(f.All()) > 0 && ok(f.Last()) {
			return f.Last()
		}
		select {
		case <-f.publish:
		case <-deadline:
			f.t.Fatalf("never published: %s; problems: %q", what, f.source.Problems())
		}
	}
}

// Problem waits for a problem that contains all texts, and returns it.
func (f *Follower) Problem(texts ...string) string {
	f.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		for _, p := range f.source.Problems() {
			missing := false
			for _, text := range texts {
				missing = missing || !strings.Contains(p, text)
			}
			if !missing {
				return p
			}
		}
	}
	f.t.Fatalf("no problem with %q among %q", texts, f.source.Problems())
	return ""
}

// NoProblems waits until the Source reports no problem.
func (f *Follower) NoProblems() {
	f.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if len(f.source.Problems()) == 0 {
			return
		}
	}
	f.t.Fatalf("problems: %q", f.source.Problems())
}

// Still fails if anything is published in a while.
func (f *Follower) Still(while time.Duration) {
	f.t.Helper()
	before := len(f.All())
	time.Sleep(while)
	if after := len(f.All()); after != before {
		f.t.Fatalf("%d snapshots published, want none", after-before)
	}
}

// Quiet returns a logger that discards everything.
func Quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// HasPod returns a condition for Until: the pod exists in namespace shop.
func HasPod(name string) func(*model.Snapshot) bool {
	return func(s *model.Snapshot) bool {
		_, ok := s.Pods.Get(model.PodID{Namespace: "shop", Name: name})
		return ok
	}
}
