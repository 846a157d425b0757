// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
)

// watchPatience is how long the agent waits for the cluster's policies before it reads flow events. They
// explain events from before the start.
const watchPatience = 5 * time.Second

// watching is the goroutine that reads flow events from the data path.
type watching struct {
	opened time.Time
	stop   context.CancelFunc // nil until it runs
	done   chan struct{}
}

// watch starts reading flow events, if the data path reports them and the policies that explain them are
// known.
func (l *loop) watch() {
	w, ok := l.backend.(dataplane.Watcher)
	if !ok || l.cfg.Flows.Off || l.watching.stop != nil ||
		l.enforced.inForce == nil && time.Since(l.watching.opened) < watchPatience {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.watching.stop, l.watching.done = cancel, make(chan struct{})
	go func() {
		defer close(l.watching.done)
		for ctx.Err() == nil {
			if err := w.Watch(ctx, l.agent.flows.Add); err != nil {
				l.log.Error("watch flows", "error", err, "again in", l.cfg.RetryMax)
			}
			select {
			case <-ctx.Done():
			case <-time.After(l.cfg.RetryMax):
			}
		}
	}()
}

// unwatch stops reading flow events and waits for the goroutine to end.
func (l *loop) unwatch() {
	if l.watching.stop != nil {
		l.watching.stop()
		<-l.watching.done
	}
}
