// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// Edit is a change of one object while a connection is open, and its effect.
type Edit struct {
	What string
	Flow *Flow
	// Stopped is the time from the change to the last new connection that succeeded, Resumed the time from its
	// reversal to the next one.
	Stopped, Resumed time.Duration
	// Cut is true if the open connection stopped too, Continued if it continued afterwards.
	Cut, Continued bool
}

// EditPolicy deletes the policy that allows a flow, and EditLabel removes the labels of the flow's source; each
// then reverses the edit. They select a flow between Linux pods that the edit closes, according to the reference.
// The result is nil if no flow depends on a single policy (or the labels of one pod).
func (c *Cluster) EditPolicy(ctx context.Context, flows []*Flow) (*Edit, error) {
	for _, f := range openable(flows) {
		if f.Ingress.Cause.Reason != model.ReasonRule {
			continue
		}
		origin := f.Ingress.Cause.Origin
		closes, err := c.wouldClose(ctx, f, func(s *model.Snapshot) { s.Policies = s.Policies.Without(origin.Key()) })
		if err != nil {
			return nil, err
		}
		if !closes {
			continue
		}
		name, text, ok, err := c.Manifests.policyFile(origin)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		return c.watch(ctx, f, "delete "+origin.String(),
			func() error { return c.Manifests.remove(name) },
			func() error { return c.Manifests.write(name, text) })
	}
	return nil, nil
}

// EditLabel is described with EditPolicy.
func (c *Cluster) EditLabel(ctx context.Context, flows []*Flow) (*Edit, error) {
	for _, f := range openable(flows) {
		bare := *f.From.Pod.Pod
		bare.Labels = model.Labels{}
		closes, err := c.wouldClose(ctx, f, func(s *model.Snapshot) { s.Pods = s.Pods.With(bare.PodID, &bare) })
		if err != nil {
			return nil, err
		}
		if !closes {
			continue
		}
		return c.watch(ctx, f, "take the labels of pod "+f.From.Name+" away",
			func() error { return c.Manifests.WritePod(&bare) },
			func() error { return c.Manifests.WritePod(f.From.Pod.Pod) })
	}
	return nil, nil
}

// openable returns the flows on which a connection can stay open.
func openable(flows []*Flow) []*Flow {
	var all []*Flow
	for _, f := range flows {
		if f.Protocol == model.TCP && f.Want == model.Allow && f.From.Pod != nil && !onWindows(f.From.Pod) && !onWindows(f.To) && f.Src.Is4() {
			all = append(all, f)
		}
	}
	return all
}

// wouldClose reports whether an edit closes a flow, according to the reference.
func (c *Cluster) wouldClose(ctx context.Context, f *Flow, change func(*model.Snapshot)) (bool, error) {
	objects, err := c.Manifests.Objects(ctx)
	if err != nil {
		return false, err
	}
	s := *objects.Snapshot()
	change(&s)
	egress, ingress := policy.NewEvaluator(&s).Flow(f.Flow)
	return egress.Verdict == model.Deny || ingress.Verdict == model.Deny, nil
}

// watch makes a change and reverses it, with one open connection and continuous attempts to open new ones.
func (c *Cluster) watch(ctx context.Context, f *Flow, what string, change, undo func() error) (*Edit, error) {
	e := &Edit{What: what, Flow: f}
	open, err := f.traffic().Dial(ctx, time.Second)
	if err != nil {
		return nil, fmt.Errorf("open a connection: %w", err)
	}
	defer open.Close()
	goesOn := func(patience time.Duration) bool { return traffic.Exchange(open, patience) == nil }
	if !goesOn(time.Second) {
		return nil, errors.New("the connection does not answer before the change")
	}
	attempts := c.attempt(ctx, f)
	defer attempts.stop()
	time.Sleep(50 * time.Millisecond)

	changed := time.Now()
	if err := change(); err != nil {
		return nil, err
	}
	if e.Stopped, err = attempts.lastSuccess(changed); err != nil {
		return nil, errors.Join(err, undo())
	}
	e.Cut = !goesOn(300 * time.Millisecond)
	undone := time.Now()
	if err := undo(); err != nil {
		return nil, err
	}
	if e.Resumed, err = attempts.firstSuccess(undone); err != nil {
		return nil, err
	}
	// TCP retransmits lost segments after its timer.
	e.Continued = goesOn(5 * time.Second)
	return e, nil
}

// attempts are new connections, one every two milliseconds.
type attempts struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	good   []time.Time // the start times of successful attempts
}

func (c *Cluster) attempt(ctx context.Context, f *Flow) *attempts {
	ctx, cancel := context.WithCancel(ctx)
	a := &attempts{cancel: cancel}
	a.wg.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		limit := make(chan struct{}, 64)
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			select {
			case limit <- struct{}{}:
			default:
				continue // enough attempts are pending
			}
			begun := time.Now()
			a.wg.Go(func() {
				defer func() { <-limit }()
				v, err := connect(ctx, f.traffic(), 60*time.Millisecond)
				if err == nil && v == model.Allow {
					a.mu.Lock()
					defer a.mu.Unlock()
					a.good = append(a.good, begun)
				}
			})
		}
	})
	return a
}

func (a *attempts) stop() {
	a.cancel()
	a.wg.Wait()
}

// since returns the first and last success after a time.
func (a *attempts) since(t time.Time) (first, last time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, g := range a.good {
		if g.Before(t) {
			continue
		}
		if first.IsZero() || g.Before(first) {
			first = g
		}
		if g.After(last) {
			last = g
		}
	}
	return first, last
}

// lastSuccess waits until no attempt succeeds any more, and returns the time from a moment to the last success.
func (a *attempts) lastSuccess(after time.Time) (time.Duration, error) {
	const quiet = 400 * time.Millisecond
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		_, last := a.since(after)
		if last.IsZero() {
			last = after
		}
		if time.Since(last) > quiet {
			return last.Sub(after), nil
		}
	}
	return 0, errors.New("connections still get through after the change")
}

// firstSuccess waits until an attempt succeeds.
func (a *attempts) firstSuccess(after time.Time) (time.Duration, error) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if first, _ := a.since(after); !first.IsZero() {
			return first.Sub(after), nil
		}
	}
	return 0, errors.New("no connection gets through after the change was taken back")
}
