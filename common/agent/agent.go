// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-net/isthmus/common/agent/meter"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
)

// Agent is the agent of one node. Its methods are safe for concurrent use.
type Agent struct {
	cfg     Config
	log     *slog.Logger
	meter   *meter.Meter
	sampler meter.Sampler[dataplane.Counters]
	// drifted are the last differences that audits and checks found.
	drifted dataplane.History
	metrics *prometheus.Registry
	flows   *observe.Store
	// newest are the exemplars of the counters of flows.
	newest observe.Newest

	// latest is the newest snapshot; wake makes the loop read it.
	latest atomic.Pointer[model.Snapshot]
	// arrived is when the oldest snapshot came that the loop has not taken; nil if none.
	arrived atomic.Pointer[time.Time]
	wake    chan struct{}
	// requests are executed by the loop, one after the other.
	requests chan func(*loop)
	// done is closed when the loop has ended.
	done chan struct{}

	// view is what the loop last published.
	view atomic.Pointer[view]
	// beat is the time of the loop's last heartbeat. Its monotonic reading counts: the clock of the node may be set.
	beat atomic.Pointer[time.Time]
}

// New validates the Config and returns an Agent that Run starts.
func New(cfg Config, log *slog.Logger) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.PolicyOnly {
		cfg.Quarantine = 0 // the other CNI plugin decides when to use an address again
	}
	a := &Agent{
		cfg:      cfg,
		log:      log,
		wake:     make(chan struct{}, 1),
		requests: make(chan func(*loop)),
		done:     make(chan struct{}),
	}
	a.flows = observe.NewStore(cfg.Flows.Config, log, a.latest.Load)
	a.meter = meter.New(commands, codes)
	a.metrics = newRegistry(a)
	a.view.Store(&view{problems: problems{{problemAgent, "agent is starting"}}})
	a.heartbeat()
	return a, nil
}

// Publish hands over the newest snapshot. It does not block. The loop may skip all but the last of several
// quick snapshots.
func (a *Agent) Publish(s *model.Snapshot) {
	a.latest.Store(s)
	now := time.Now()
	a.arrived.CompareAndSwap(nil, &now)
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Snapshot returns the newest snapshot, or nil before the first one.
func (a *Agent) Snapshot() *model.Snapshot { return a.latest.Load() }

// Run runs the loop until the context is done. It then finishes the current step, answers all waiting
// requests and closes the Backend; the data path stays in force. Call it once. It returns an error if it
// cannot read the records or open the data path.
func (a *Agent) Run(ctx context.Context) error {
	defer close(a.done)
	l, err := newLoop(a)
	if err != nil {
		return err
	}
	return l.run(ctx)
}

// Drain prepares the end: it answers all waiting requests, rejects new ones and disconnects the followers of
// flows. It returns an error if the loop has ended, or was busy until the context ended.
func (a *Agent) Drain(ctx context.Context) error {
	err := a.do(ctx, (*loop).stop)
	a.flows.Stop()
	return err
}

// served counts and logs a CNI request. It runs when the request ends.
func (a *Agent) served(command string, began time.Time, failed *error) {
	code := uint32(0)
	if *failed != nil {
		code = AsError(*failed).Code
	}
	a.meter.Served(command, began, code)
	if *failed != nil {
		a.log.Warn("CNI request", "command", command, "seconds", time.Since(began).Seconds(), "error", *failed)
	}
}

// do lets the loop execute f and waits for it. If the context ends first, the loop does not execute f.
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

func (a *Agent) heartbeat() {
	now := time.Now()
	a.beat.Store(&now)
}

// stalled reports whether the loop's last heartbeat is older than Config.Stall.
func (a *Agent) stalled() bool {
	return time.Since(*a.beat.Load()) > a.cfg.Stall
}
