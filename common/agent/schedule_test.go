// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/model"
)

// scheduled is a data path that records when its background work is done.
type scheduled struct {
	*dataplanetest.Fake
	follow, idle, audit turns
}

// turns are the calls of one method.
type turns struct {
	count int
	last  time.Time
	// gap is the longest time between two calls.
	gap time.Duration
	err error
}

func (c *turns) call() error {
	now := time.Now()
	if c.count++; c.count > 1 {
		c.gap = max(c.gap, now.Sub(c.last))
	}
	c.last = now
	return c.err
}

func (s *scheduled) Follow(context.Context) error       { return s.follow.call() }
func (s *scheduled) Idle(context.Context) (bool, error) { return false, s.idle.call() }
func (s *scheduled) Audit(context.Context, *model.State) ([]dataplane.Drift, error) {
	return nil, s.audit.call()
}

// schedule lets an agent of mode policy work for five minutes, with a request every 50 ms or without any.
func (r *rig) schedule(s *scheduled, requests bool) {
	r.t.Helper()
	r.noPool, r.change = true, func(c *agentConfig) {
		c.PolicyOnly = true
		c.Open = func(context.Context, model.Node) (dataplane.Backend, error) { return s, nil }
	}
	r.start()
	r.agent.Publish(cluster{pods: 1, nodes: []*model.Node{node("node1")}}.snapshot())
	if _, err := r.agent.Add(context.Background(), foreignRequest(0, "10.9.0.7")); err != nil {
		r.t.Fatal(err)
	}
	for range 5 * time.Minute / (50 * time.Millisecond) {
		if requests {
			check := &cniframe.CheckRequest{Attachment: addRequest(0).Attachment, Foreign: foreignRequest(0, "10.9.0.7").Foreign}
			if err := r.agent.Check(context.Background(), check); err != nil {
				r.t.Fatal(err)
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	r.end()
	r.t.Logf("follow %+v, idle %+v, audit %+v", s.follow, s.idle, s.audit)
}

// Requests that arrive all the time delay nothing: the agent follows the interfaces of another plugin at least twice a
// second, lets the data path work every second, and audits it every minute.
func TestScheduleUnderRequests(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		s := &scheduled{Fake: r.fake}
		r.schedule(s, true)
		if s.follow.count < 600 || s.follow.gap > 500*time.Millisecond {
			t.Errorf("the agent follows interfaces: %+v", s.follow)
		}
		if s.idle.count < 250 || s.idle.gap > 1100*time.Millisecond {
			t.Errorf("background work: %+v", s.idle)
		}
		if s.audit.count < 4 || s.audit.gap > 61*time.Second {
			t.Errorf("audits: %+v", s.audit)
		}
	})
}

// Errors of background work delay neither the following of interfaces nor the audit. An error of following does not
// delay the next attempt.
func TestScheduleAfterErrors(t *testing.T) {
	for _, requests := range []bool{false, true} {
		run(t, func(t *testing.T, r *rig) {
			broken := errors.New("no memory")
			s := &scheduled{Fake: r.fake, follow: turns{err: broken}, idle: turns{err: broken}, audit: turns{err: broken}}
			r.schedule(s, requests)
			if s.follow.count < 600 || s.follow.gap > 500*time.Millisecond {
				t.Errorf("requests %t: the agent follows interfaces: %+v", requests, s.follow)
			}
			if s.audit.count < 4 || s.audit.gap > 61*time.Second {
				t.Errorf("requests %t: audits: %+v", requests, s.audit)
			}
			if s.idle.count < 9 || s.idle.gap > 31*time.Second {
				t.Errorf("requests %t: background work: %+v", requests, s.idle)
			}
		})
	}
}
