// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"context"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/page"
)

// changeEvery is the shortest time between two states of a cluster that the pages show: each must be prepared.
const changeEvery = 3 * time.Second

// watched is a cluster while it changes.
type watched struct {
	options *options

	mutex   sync.Mutex
	newest  *model.Snapshot
	found   cluster.Problems
	behind  string
	changed time.Time // of newest
	shown   *page.Cluster
	since   time.Time // of shown
}

// watch follows the cluster and returns when its first state is known. ended gets the error that ended it, after end was
// called.
func (o *options) watch(ctx context.Context, end context.CancelFunc, ended chan<- error) (*watched, error) {
	w, first, over := &watched{options: o}, make(chan struct{}), make(chan error, 1)
	var once sync.Once
	go func() {
		err := o.Follow(ctx, func(s *model.Snapshot, found cluster.Problems) {
			w.set(s, found)
			once.Do(func() { close(first) })
		}, w.setBehind)
		over <- err
		ended <- err
		end()
	}()
	select {
	case <-first:
		return w, nil
	case err := <-over:
		if err == nil {
			err = ctx.Err()
		}
		return nil, err
	}
}

func (w *watched) set(s *model.Snapshot, found cluster.Problems) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.newest, w.found, w.changed = s, found, time.Now()
}

func (w *watched) setBehind(why string) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.behind = why
}

// cluster returns the newest state that was prepared, or one after changeEvery.
func (w *watched) cluster() *page.Cluster {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	now := time.Now()
	same := w.shown != nil && w.shown.Snapshot == w.newest && w.shown.Stale == w.behind
	if same || w.shown != nil && now.Sub(w.since) < changeEvery {
		return w.shown
	}
	o := w.options
	w.shown = &page.Cluster{Snapshot: w.newest, Services: o.Services, Source: o.Name(), At: w.changed, Remarks: w.found.Warnings, Stale: w.behind}
	w.since = now
	return w.shown
}
