// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
)

// Agent is a node's agent. Its methods may be called from any goroutine.
type Agent struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	flows   *flows

	// latest is the newest snapshot; wake tells the loop to look.
	latest atomic.Pointer[model.Snapshot]
	wake   chan struct{}
	// requests are executed by the loop, one after the other.
	requests chan func(*loop)
	// done is closed when the loop has ended.
	done chan struct{}

	// view is what the loop last published.
	view atomic.Pointer[view]
	// beat is when the loop last gave a sign of life, in Unix nanoseconds.
	beat atomic.Int64
}

// New checks the Config and makes an Agent; Run sets it to work.
func New(cfg Config, log *slog.Logger) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	a := &Agent{
		cfg:      cfg,
		log:      log,
		wake:     make(chan struct{}, 1),
		requests: make(chan func(*loop)),
		done:     make(chan struct{}),
	}
	a.flows = newFlows(cfg.Flows, log, a.latest.Load)
	a.metrics = newMetrics(a)
	a.view.Store(&view{problems: []string{"agent is starting"}})
	a.heartbeat()
	return a, nil
}

// Publish hands over the newest snapshot. It does not block; of several
// snapshots that come quickly only the last may be used.
func (a *Agent) Publish(s *model.Snapshot) {
	a.latest.Store(s)
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Run does the work until the context is done, then finishes what it is at,
// answers who still waits, and lets go of the data path, which stays in force.
// It may be called once. It returns an error if the records cannot be read or
// the data path cannot be opened.
func (a *Agent) Run(ctx context.Context) error {
	defer close(a.done)
	l, err := newLoop(a)
	if err != nil {
		return err
	}
	return l.run(ctx)
}

// do lets the loop execute f and waits for it. f is not executed if the
// context is done before its turn comes.
func (a *Agent) do(ctx context.Context, f func(*loop)) error {
	finished := make(chan struct{})
	wrapped := func(l *loop) {
		if ctx.Err() == nil {
			f(l)
		}
		close(finished)
	}
	select {
	case a.requests <- wrapped:
	case <-ctx.Done():
		return ctx.Err()
	case <-a.done:
		return errStopped
	}
	select {
	case <-finished:
		return ctx.Err()
	case <-a.done:
		return errStopped
	}
}

var errStopped = refuse(CodeTryAgain, "wait until it runs again", "isthmus-agent is stopping")

func (a *Agent) heartbeat() { a.beat.Store(time.Now().UnixNano()) }

// stalled reports whether the loop has been silent for too long.
func (a *Agent) stalled() bool {
	return time.Since(time.Unix(0, a.beat.Load())) > a.cfg.Stall
}
