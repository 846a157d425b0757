// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/windows/acl"
)

var _ dataplane.Reader = (*Backend)(nil)

// ReadDecisions implements dataplane.Reader. It reads the ACLs of our endpoints and our sets from HNS, without those that
// precede policy, which are not its decisions.
func (b *Backend) ReadDecisions(ctx context.Context) (dataplane.Decisions, error) {
	n, err := b.findNetwork(ctx)
	if err == nil && n == nil {
		err = fmt.Errorf("hns has no network %q: restart isthmus-agent, which creates it", b.config.Network)
	}
	if err != nil {
		return dataplane.Decisions{}, fmt.Errorf("read decisions: %w", err)
	}
	list, err := b.listEndpoints(ctx, n.ID)
	if err != nil {
		return dataplane.Decisions{}, fmt.Errorf("read decisions: %w", err)
	}
	inv := b.read(n, list)
	for id, before := range inv.before {
		if !acl.Equal(before, b.preceding()) { // of another process, or of an earlier State
			inv.Lists[id] = slices.Concat(before, inv.Lists[id])
		}
	}
	raw, err := json.Marshal(&inv.Ruleset)
	if err != nil {
		return dataplane.Decisions{}, fmt.Errorf("read decisions: %w", err)
	}
	d := dataplane.Decisions{Lists: raw, NodeAddresses: b.options.Node}
	for set := range inv.broken {
		d.Problems = append(d.Problems, fmt.Sprintf("set %s: has content that Isthmus does not write", set))
	}
	return d, nil
}
