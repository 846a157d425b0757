// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"context"
	"errors"
	"fmt"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

var _ dataplane.Watcher = (*Backend)(nil)

// Watch implements dataplane.Watcher. It reports denied flows. One that an ACL of another program drops has no cause if
// policy allows it: the events do not name the ACL.
func (b *Backend) Watch(ctx context.Context, f func([]model.FlowEvent)) error {
	if b.flows == nil {
		return fmt.Errorf("watch flows: no events of Windows are read: %w", errors.ErrUnsupported)
	}
	return b.flows.Watch(ctx, f)
}
