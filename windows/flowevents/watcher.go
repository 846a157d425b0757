// SPDX-License-Identifier: Apache-2.0

package flowevents

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/etw"
)

// Limits bound the events of a pod. Each direction has a budget of its own.
type Limits struct {
	// Rate is the maximum number of events per second, Burst that of a quiet pod at once.
	Rate, Burst int
}

// The maximum values of Limits: what one reader can process.
const (
	MaxRate  = 10_000
	MaxBurst = 100_000
)

// Validate reports all invalid numbers.
func (l Limits) Validate() error {
	var errs []error
	if l.Rate < 1 || l.Rate > MaxRate {
		errs = append(errs, fmt.Errorf("rate of flow events %d: give a number from 1 to %d a second", l.Rate, MaxRate))
	}
	if l.Burst < 1 || l.Burst > MaxBurst {
		errs = append(errs, fmt.Errorf("burst of flow events %d: give a number from 1 to %d", l.Burst, MaxBurst))
	}
	return errors.Join(errs...)
}

// Watcher reads flow events. Its methods are safe for concurrent use; only one Watch may run at a time.
type Watcher struct {
	source  etw.Source
	limits  Limits
	history history

	limited atomic.Uint64
	// denied counts packets that policy denied, by Direction, and listed those that deny lists dropped, IPv4 and
	// IPv6. Both include those whose events are over the limit.
	denied, listed [2]atomic.Uint64

	mu      sync.Mutex // guards the fields below
	budgets map[budget]*rate.Limiter
	failed  error // of the last Watch
}

// budget names one budget.
type budget struct {
	endpoint  model.EndpointID
	direction model.Direction
}

// New returns a Watcher. The Limits must be valid.
func New(source etw.Source, l Limits) *Watcher {
	return &Watcher{source: source, limits: l, budgets: make(map[budget]*rate.Limiter),
		history: newHistory()}
}

// Watch calls f with new flow events until the context is done.
func (w *Watcher) Watch(ctx context.Context, f func([]model.FlowEvent)) error {
	w.note(nil)
	err := w.source.Read(ctx, func(events []etw.Event) {
		var list []model.FlowEvent
		for i := range events {
			p, ok := parse(&events[i])
			if !ok {
				continue
			}
			e, why := w.history.explain(&p)
			switch {
			case why == byDenyList:
				w.listed[family(p.remote())].Add(1)
			case why == byPolicy:
				if w.denied[p.direction].Add(1); w.pays(&e) {
					list = append(list, e)
				}
			}
		}
		if len(list) > 0 {
			f(list)
		}
	})
	if err != nil {
		err = fmt.Errorf("read events of VFP: %w", err)
	}
	w.note(err)
	return err
}

// pays takes an event from the budget of its pod. It counts one that is over the limit.
func (w *Watcher) pays(e *model.FlowEvent) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := budget{e.Endpoint, e.Direction}
	b := w.budgets[key]
	if b == nil {
		b = rate.NewLimiter(rate.Limit(w.limits.Rate), w.limits.Burst)
		w.budgets[key] = b
	}
	if b.AllowN(e.Time, 1) {
		return true
	}
	w.limited.Add(1)
	return false
}

func (w *Watcher) note(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = err
}

// Begin records a State before it is written, so that every event finds its State.
func (w *Watcher) Begin(s *model.State) { w.history.begin(s, time.Now()) }

// Applied records that the State of the last Begin is in force.
func (w *Watcher) Applied(s *model.State) { w.history.applied(s, time.Now()) }

// EndpointAdded records the pod of an endpoint that no State may have yet. earlier is true if the endpoint was
// attached before, and its ACLs stayed. Until the first State they are those of an earlier agent, and drops by them
// have no cause.
func (w *Watcher) EndpointAdded(s dataplane.EndpointSpec, earlier bool) { w.history.attach(s, earlier) }

// RemoveEndpoint forgets a pod.
func (w *Watcher) RemoveEndpoint(id model.EndpointID) {
	w.history.detach(id)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range model.Directions {
		delete(w.budgets, budget{id, d})
	}
}

// Count implements dataplane.Counter. It adds the packets that were denied or dropped since New, as far as Windows
// has written events of them, and the events that were not delivered.
func (w *Watcher) Count(c *dataplane.Counters) error {
	c.Events = dataplane.EventCounts{Limited: w.limited.Load(), Lost: w.source.Lost()}
	c.Counted = model.DeniedFlows
	for _, d := range model.Directions {
		c.Verdicts[d][model.Deny] = w.denied[d].Load()
	}
	c.Drops = map[string]uint64{"deny_list_ipv4": w.listed[0].Load(), "deny_list_ipv6": w.listed[1].Load()}
	c.Facts = append(c.Facts, w.Fact())
	return nil
}

// family returns the index of the family of an address in counters.
func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// Fact describes what the events show, for administrators.
func (w *Watcher) Fact() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != nil {
		return "flow events: none: " + w.failed.Error()
	}
	return "flow events: denied flows only; Windows does not show allowed ones"
}
