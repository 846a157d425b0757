// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"fmt"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

var _ dataplane.Reader = (*Backend)(nil)

// ReadDecisions implements dataplane.Reader. It reads the policy maps, not the layout in memory. An endpoint
// whose interface has no entry is missing, because the programs deny its packets.
func (b *Backend) ReadDecisions(context.Context) (dataplane.Decisions, error) {
	if older := b.path.Older(); older != "" {
		return dataplane.Decisions{}, fmt.Errorf("read decisions: maps of layout %s are being migrated: try again after the upgrade", older)
	}
	entries, err := b.path.Read()
	if err != nil {
		return dataplane.Decisions{}, fmt.Errorf("read decisions: %w", err)
	}
	known, err := b.path.Endpoints()
	if err != nil {
		return dataplane.Decisions{}, fmt.Errorf("read decisions: %w", err)
	}
	found, err := b.list()
	if err != nil {
		return dataplane.Decisions{}, fmt.Errorf("read decisions: %w", err)
	}
	slots := make(map[model.EndpointID]uint32)
	for _, f := range found {
		if e, ok := known[f.Index]; ok && f.ID != "" {
			slots[f.ID] = e.Slot
		}
	}
	layout, problems := policymap.Decode(entries, slots, b.path.Capacity())
	return dataplane.Decisions{State: layout.State(), Problems: problems}, nil
}
