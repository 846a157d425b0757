// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
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
	if !ok || l.features.Flows == model.NoFlows || l.cfg.Flows.Off || l.watching.stop != nil ||
		l.enforced.inForce == nil && time.Since(l.watching.opened) < watchPatience {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.watching.stop, l.watching.done = cancel, make(chan struct{})
	missed := &undelivered{agent: l.agent, read: l.backend.Counters}
	go func() {
		defer close(l.watching.done)
		missed.report() // before the first flow: followers learn of every event that is missed from now on
		var counting sync.WaitGroup
		counting.Go(func() { missed.run(ctx) })
		defer counting.Wait()
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

// undeliveredEvery is the interval of reading how many events the data path did not deliver.
const undeliveredEvery = 5 * time.Second

// undelivered reports to the followers of flows how many events the data path did not deliver: those over the limit of a
// pod, and those that were not read in time.
type undelivered struct {
	agent *Agent
	read  func(context.Context) (dataplane.Counters, error)
	// last is the count that was last read, if known.
	last  uint64
	known bool
}

func (u *undelivered) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(undeliveredEvery):
			u.report()
		}
	}
}

// report reports the events since the call before. The first call that reads the counters only remembers them. Counters
// that are lower than before began again.
func (u *undelivered) report() {
	s := u.agent.sampler.Sample(statusWait, u.read)
	if s.Err != nil {
		return
	}
	n := s.Counters.Events.Limited + s.Counters.Events.Lost
	switch {
	case !u.known:
	case n < u.last:
		u.agent.flows.Undelivered(n)
	default:
		u.agent.flows.Undelivered(n - u.last)
	}
	u.last, u.known = n, true
}

// noteReports records which flows the data path does not report.
func (l *loop) noteReports() {
	if l.features.Flows == model.DeniedFlows {
		l.agent.flows.SetIncomplete(fmt.Sprintf("this node (%s, %s) reports denied flows only: its data path does not show allowed ones", l.features.OS, l.features.Platform))
	}
}

// unwatch stops reading flow events and waits for the goroutine to end.
func (l *loop) unwatch() {
	if l.watching.stop != nil {
		l.watching.stop()
		<-l.watching.done
	}
}

// Newest holds the exemplars of the counters of flows. The server of Hubble's interface, which gives flows their identifiers,
// sets them.
func (a *Agent) Newest() *observe.Newest { return &a.newest }

// Flows returns the flow events of this node. The error says why there are none; it is
// errors.ErrUnsupported if the data path does not report single flows.
func (a *Agent) Flows() (*observe.Store, error) {
	v := a.view.Load()
	if v.backend == nil {
		return nil, errNoDataPath
	}
	if a.cfg.Flows.Off {
		return nil, errors.New("flow events are off: start the agent without --flow-events=off")
	}
	if v.flowReports() == model.NoFlows {
		what := "the data path"
		if v.features.OS == model.Windows {
			what = "HNS"
		}
		return nil, noFlows(fmt.Sprintf("%s of this node (%s, %s) does not report single flows", what, v.features.OS, v.features.Platform))
	}
	return a.flows, nil
}

// flowReports returns which flows the data path reports.
func (v *view) flowReports() model.FlowReports {
	if _, ok := v.backend.(dataplane.Watcher); !ok {
		return model.NoFlows
	}
	return v.features.Flows
}

// errNoDataPath is the error of reading a data path before it is open.
var errNoDataPath = errors.New("the data path is not open yet")

// noFlows is the error of a data path that does not report single flows.
type noFlows string

// Error returns the message.
func (e noFlows) Error() string { return string(e) }

// Is reports whether the target is errors.ErrUnsupported.
func (noFlows) Is(target error) bool { return target == errors.ErrUnsupported }
