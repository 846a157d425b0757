// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"errors"
	"fmt"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

var _ dataplane.Watcher = (*Backend)(nil)

// Watch implements dataplane.Watcher. It reports denied flows. Events from before it began are lost, and not counted.
func (b *Backend) Watch(ctx context.Context, f func([]model.FlowEvent)) error {
	if b.flows == nil {
		return fmt.Errorf("watch flows: no events of Windows are read: %w", errors.ErrUnsupported)
	}
	return b.flows.Watch(ctx, f)
}

// apply is applyOnce that records for Watch which State the ACLs enforce.
func (b *Backend) apply(ctx context.Context, s *model.State) ([]model.Unsupported, map[model.EndpointID]bool, error) {
	if b.flows == nil {
		return b.applyOnce(ctx, s)
	}
	b.flows.Begin(s)
	unsupported, refused, err := b.applyOnce(ctx, s)
	if err == nil {
		b.flows.Applied(s)
	}
	return unsupported, refused, err
}
