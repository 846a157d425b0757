// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/rulecounters"
)

var _ dataplane.CauseCounter = (*Backend)(nil)

// ruleCounters counts packets by rule in the background.
type ruleCounters struct {
	*rulecounters.Sampler
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// startCounters starts the passes, if the Config has a program for them.
func (b *Backend) startCounters() {
	if b.config.RuleCounters == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.counters = &ruleCounters{cancel: cancel, Sampler: rulecounters.New(rulecounters.Config{
		Run: b.config.RuleCounters, Interval: b.config.RuleCounterInterval, Log: b.log})}
	b.counters.done.Go(func() { b.counters.Run(ctx) })
}

// stopCounters ends the passes and their program.
func (b *Backend) stopCounters() {
	if b.counters != nil {
		b.counters.cancel()
		b.counters.done.Wait()
	}
}

var errCountersOff = errors.New("turn on --rule-counters")

// CauseCounts implements dataplane.CauseCounter. It reads what was counted so far.
func (b *Backend) CauseCounts(context.Context) (dataplane.CauseCounts, error) {
	if b.counters == nil {
		return dataplane.CauseCounts{}, fmt.Errorf("%w: %w", dataplane.ErrNotCounted, errCountersOff)
	}
	return b.counters.CauseCounts()
}

// noteWrites records the lists that a plan is about to change, also through their sets.
func (x *execution) noteWrites(s *model.State) {
	if x.counters == nil {
		return
	}
	x.counters.Begin(s)
	for _, step := range x.plan.Steps {
		for id := range x.have.endpoints {
			if step.Action == acl.WriteList && step.Endpoint == id ||
				step.Action != acl.WriteList && (acl.RefersTo(x.have.Lists[id], step.Set) || acl.RefersTo(x.plan.Target.Lists[id], step.Set)) {
				x.counters.Writing(id)
			}
		}
	}
}

// noteInstalled records the lists that are certain after a plan.
func (x *execution) noteInstalled(s *model.State) {
	if x.counters == nil {
		return
	}
	all := make(map[model.EndpointID]rulecounters.Installed)
	for id, list := range x.plan.Target.Lists {
		if e, known := x.have.endpoints[id], s.Policy.Endpoints[id]; e != nil && len(x.errs[id]) == 0 && !isPrepared(id) && known.Table != (model.TableID{}) {
			all[id] = rulecounters.Installed{GUID: e.ID, List: list, Sets: x.plan.Target.Sets, Options: x.options}
		}
	}
	x.counters.Installed(all)
}
