// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"

	"github.com/isthmus-net/isthmus/common/dataplane"
)

// AddComponent appends a component to the list of makeComponents.
func (b *Backend) AddComponent(c dataplane.Component) { b.components = append(b.components, c) }

// Unfinished counts the objects with a write that has not returned.
func (b *Backend) Unfinished() int { return len(b.hns.Unfinished()) }

// Metered counts the endpoints whose counts are remembered.
func (b *Backend) Metered() int { return len(b.meter.last) }

// CountRules makes a pass of the counters of rules.
func (b *Backend) CountRules(ctx context.Context) { b.counters.Pass(ctx) }
