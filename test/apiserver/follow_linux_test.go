// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/kube"
	"github.com/isthmus-net/isthmus/common/model"
)

// follower runs a source and records the published snapshots.
type follower struct {
	t      *testing.T
	source kube.Source

	mu        sync.Mutex
	snapshots []*model.Snapshot
}

// follow runs a source until the test ends.
func follow(t *testing.T, source kube.Source) *follower {
	t.Helper()
	f := &follower{t: t, source: source}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- source.Run(ctx, func(s *model.Snapshot) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.snapshots = append(f.snapshots, s)
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return f
}

func (f *follower) all() []*model.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.snapshots)
}

const waiting = 30 * time.Second

// until waits for a snapshot that meets a condition.
func (f *follower) until(what string, ok func(*model.Snapshot) bool) *model.Snapshot {
	f.t.Helper()
	for deadline := time.Now().Add(waiting); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if all := f.all(); len(all) > 0 && ok(all[len(all)-1]) {
			return all[len(all)-1]
		}
	}
	f.t.Fatalf("never published: %s; problems: %q", what, f.source.Problems())
	return nil
}

// problem waits for a problem that contains all texts.
func (f *follower) problem(texts ...string) {
	f.t.Helper()
	for deadline := time.Now().Add(waiting); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if slices.ContainsFunc(f.source.Problems(), func(p string) bool {
			return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(p, text) })
		}) {
			return
		}
	}
	f.t.Fatalf("no problem with %q among %q", texts, f.source.Problems())
}

// noProblems waits until there are no problems.
func (f *follower) noProblems() {
	f.t.Helper()
	for deadline := time.Now().Add(waiting); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if len(f.source.Problems()) == 0 {
			return
		}
	}
	f.t.Fatalf("problems: %q", f.source.Problems())
}

// render returns the parts of a namespace and of the cluster that policies read, without UIDs and times.
func render(s *model.Snapshot, namespace string) string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	add("%v", *s.Namespace(namespace))
	for _, n := range s.Nodes.All() {
		add("%v", *n)
	}
	for id, p := range s.Pods.All() {
		if id.Namespace == namespace {
			pod := *p
			pod.UID, pod.Created = "", 0
			add("%v", pod)
		}
	}
	for o, p := range s.Policies.All() {
		if o.Namespace == namespace || o.Namespace == "" {
			policy := *p
			policy.Origin.UID = ""
			add("%v", policy)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
