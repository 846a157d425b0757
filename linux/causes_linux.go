// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"maps"
	"slices"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

var _ dataplane.CauseCounter = (*Backend)(nil)

// numbered are the causes that the programs count for, at the last change of policy.
type numbered struct {
	causes map[uint32]model.Decision
	past   map[uint32]bpfobj.PodCause // have a number, but decide nothing now
	shared []model.Decision
}

// noteCauses records the causes of the policy in force, for CauseCounts.
func (b *Backend) noteCauses() {
	b.numbered.Store(&numbered{b.layout.Counted(), b.layout.Past(), b.layout.Uncounted()})
}

// CauseCounts implements dataplane.CauseCounter.
func (b *Backend) CauseCounts(context.Context) (dataplane.CauseCounts, error) {
	var c dataplane.CauseCounts
	known := b.numbered.Load()
	if known == nil {
		return c, nil
	}
	numbers := slices.Sorted(maps.Keys(known.causes))
	for n := bpfobj.CauseOther; n < bpfobj.CauseSelf; n++ {
		numbers = append(numbers, n)
	}
	numbers = slices.AppendSeq(numbers, maps.Keys(known.past))
	flows, err := b.path.CauseCounts(numbers)
	if err != nil {
		return c, err
	}
	for _, n := range numbers {
		if d, ok := known.causes[n]; ok {
			c.Causes = append(c.Causes, dataplane.CauseCount{Decision: d, Flows: flows[n]})
			continue
		}
		if p, ok := known.past[n]; ok {
			c.Past[p.Direction&1][p.Verdict&1] += flows[n]
			continue
		}
		id := n - bpfobj.CauseOther
		c.Others[id/2][id%2] = flows[n]
	}
	c.Shared = known.shared
	return c, nil
}
