// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
)

// follower runs a source and keeps the published snapshots.
type follower struct {
	t      *testing.T
	source Source

	mu        sync.Mutex
	snapshots []*model.Snapshot
	publish   chan struct{}
}

// follow runs a source until the test ends.
func follow(t *testing.T, s Source) *follower {
	t.Helper()
	f := &follower{t: t, source: s, publish: make(chan struct{}, 1000)}
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

func (f *follower) all() []*model.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]*model.Snapshot(nil), f.snapshots...)
}

// last returns the last snapshot, or an empty one.
func (f *follower) last() *model.Snapshot {
	if all := f.all(); len(all) > 0 {
		return all[len(all)-1]
	}
	return &model.Snapshot{}
}

// until waits for a snapshot that pleases.
func (f *follower) until(what string, ok func(*model.Snapshot) bool) *model.Snapshot {
	f.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		if len(f.all()) > 0 && ok(f.last()) {
			return f.last()
		}
		select {
		case <-f.publish:
		case <-deadline:
			f.t.Fatalf("never published: %s; problems: %q", what, f.source.Problems())
		}
	}
}

// problem waits for a problem that contains all texts.
func (f *follower) problem(texts ...string) string {
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

// noProblems waits until all is well.
func (f *follower) noProblems() {
	f.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if len(f.source.Problems()) == 0 {
			return
		}
	}
	f.t.Fatalf("problems: %q", f.source.Problems())
}

// still fails if anything is published in a while.
func (f *follower) still(while time.Duration) {
	f.t.Helper()
	before := len(f.all())
	time.Sleep(while)
	if after := len(f.all()); after != before {
		f.t.Fatalf("%d snapshots published, want none", after-before)
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// hasPod returns a condition: a pod with this name exists.
func hasPod(name string) func(*model.Snapshot) bool {
	return func(s *model.Snapshot) bool {
		_, ok := s.Pods.Get(model.PodID{Namespace: "shop", Name: name})
		return ok
	}
}
