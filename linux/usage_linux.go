// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"maps"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
)

const (
	// sweepEvery is how long flows that have expired may lie around.
	sweepEvery = 30 * time.Second
	// sweepBudget bounds one turn at taking them out.
	sweepBudget = 2 * time.Millisecond
)

// noteUsage notes how full the maps are, for Counters.
func (b *Backend) noteUsage() {
	if b.layout == nil {
		return // it is read back at the next call
	}
	usage := make(map[string]dataplane.MapUsage)
	all := b.layout.Usage()
	maps.Copy(all, b.path.FlowUsage())
	for name, u := range all {
		usage[name] = dataplane.MapUsage{Entries: u.Entries, Capacity: u.Capacity}
	}
	b.usage.Store(&usage)
}

// sweepFlows takes out flows that have expired, a little at a time.
func (b *Backend) sweepFlows() (more bool, err error) {
	if time.Since(b.swept) < sweepEvery {
		return false, nil
	}
	done, err := b.path.SweepFlows(sweepBudget)
	if done || err != nil {
		b.swept = time.Now()
		b.noteUsage()
	}
	return !done && err == nil, err
}
