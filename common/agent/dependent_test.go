// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/model"
)

// dependent is a data path whose decisions depend on its system. The last fails Applies in a row fail.
type dependent struct {
	*dataplanetest.Fake
	outdated       atomic.Bool
	applies, fails atomic.Int32
}

func (d *dependent) Outdated() bool { return d.outdated.Load() }

func (d *dependent) Apply(ctx context.Context, s *model.State) ([]model.Unsupported, error) {
	d.outdated.Store(false)
	if d.applies.Add(1); d.fails.Add(-1) >= 0 {
		return nil, errors.New("injected")
	}
	return d.Fake.Apply(ctx, s)
}

// TestOutdatedDataPath checks that the agent applies the State again when data of the system has changed, once, and
// repeats it after an error.
func TestOutdatedDataPath(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		path := &dependent{Fake: r.fake}
		r.change = func(c *agent.Config) {
			c.Open = func(context.Context, model.Node) (dataplane.Backend, error) { r.fake.Reopen(); return path, nil }
		}
		r.start()
		r.agent.Publish(cluster{nodes: []*model.Node{node("node1", "10.0.1.0/24")}}.snapshot())
		time.Sleep(time.Minute)
		before := path.applies.Load()
		if time.Sleep(time.Minute); path.applies.Load() != before || before == 0 {
			t.Fatalf("%d applies at rest, %d before", path.applies.Load(), before)
		}
		path.outdated.Store(true)
		time.Sleep(time.Minute)
		if got := path.applies.Load() - before; got != 1 {
			t.Errorf("%d applies after a change of the system, want 1", got)
		}
		path.fails.Store(1)
		path.outdated.Store(true)
		time.Sleep(time.Minute)
		if got := path.applies.Load() - before; got != 3 {
			t.Errorf("%d applies after a second change and an error, want 3", got)
		}
		r.end()
	})
}
