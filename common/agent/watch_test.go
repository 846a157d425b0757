// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
)

// TestUndelivered checks that followers of flows learn how many events the data path did not deliver since they began,
// each once, also if no event comes and after the counters began again.
func TestUndelivered(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		features := linux
		features.Flows = model.AllFlows
		r.fake = dataplanetest.NewFake(features)
		r.change = func(c *agent.Config) {
			open := c.Open
			c.Open = func(ctx context.Context, node model.Node) (dataplane.Backend, error) {
				_, err := open(ctx, node)
				return silent{r.fake}, err
			}
		}
		count := func(limited, lost uint64) {
			r.fake.SetCounters(dataplane.Counters{Events: dataplane.EventCounts{Limited: limited, Lost: lost}})
		}
		count(100, 50)
		r.start()
		r.agent.Publish(cluster{pods: 1}.snapshot())
		r.settle()
		store, err := r.agent.Flows()
		if err != nil {
			t.Fatal(err)
		}
		_, reader, err := store.Follow(0, observe.Filter{Namespace: "elsewhere"})
		if err != nil {
			t.Fatal(err)
		}
		next := func() ([]observe.Delivery, error) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			return reader.Next(ctx)
		}
		for _, c := range []struct{ limited, lost, want uint64 }{{100, 50, 0}, {105, 52, 7}, {105, 52, 0}, {3, 1, 4}, {3, 2, 1}} {
			count(c.limited, c.lost)
			list, err := next()
			if c.want == 0 && !errors.Is(err, context.DeadlineExceeded) || c.want > 0 && !slices.Equal(list, []observe.Delivery{{Undelivered: c.want}}) {
				t.Errorf("limited %d, lost %d: got %+v, %v, want %d undelivered", c.limited, c.lost, list, err, c.want)
			}
		}
		reader.Close()
		r.end()
	})
}
