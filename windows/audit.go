// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
)

var (
	_ dataplane.Auditor      = (*Backend)(nil)
	_ dataplane.ObjectLister = (*Backend)(nil)
)

// AuditedObjects implements dataplane.ObjectLister.
func (b *Backend) AuditedObjects() []string {
	return []string{"network", "host endpoint", "set", "acl list", "route", "host route", "forwarding"}
}

// Audit implements dataplane.Auditor. It returns what an Apply of the State would write.
func (b *Backend) Audit(ctx context.Context, s *model.State) ([]dataplane.Drift, error) {
	n, err := b.findNetwork(ctx)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	if n == nil {
		return []dataplane.Drift{{Object: "network", Detail: fmt.Sprintf("hns has no network %q", b.config.Network)}}, nil
	}
	if err := refusal(b.config.NetworkMismatches(n)); err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	list, err := b.listEndpoints(ctx, n.ID)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	var found []dataplane.Drift
	if b.config.Mode == L2Bridge && findNamed(list, b.config.HostEndpoint()) == nil {
		found = append(found, dataplane.Drift{Object: "host endpoint", Detail: "the host's endpoint is missing"})
	} else if b.config.Mode == L2Bridge && b.host == "" {
		found = append(found, dataplane.Drift{Object: "host endpoint", Detail: "the host's endpoint is not attached to the host"})
	}
	more, err := b.components.Audit(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	found = append(found, more...)
	have := b.read(n, list)
	_, plan := b.plan(have, s)
	open := b.open(have, s, plan)
	for _, step := range plan.Steps {
		if step.Action == acl.Confirm {
			continue
		}
		// A write of a set that only denies shows that what is in force allows more.
		d := dataplane.Drift{Object: "set", Open: step.Tightens, Detail: fmt.Sprintf("%s: %s", step.Set, step.Action)}
		if step.Action == acl.WriteList {
			d = dataplane.Drift{Object: "acl list", Endpoint: step.Endpoint, Open: open[step.Endpoint],
				Detail: fmt.Sprintf("holds %d ACLs that do not give the verdicts of the state", len(have.before[step.Endpoint])+len(have.Lists[step.Endpoint]))}
		}
		found = append(found, d)
	}
	for _, set := range slices.Sorted(maps.Keys(have.broken)) {
		used := false
		for _, list := range have.Lists {
			used = used || acl.RefersTo(list, set)
		}
		found = append(found, dataplane.Drift{Object: "set", Open: used, Detail: set + ": has content that Isthmus does not write"})
	}
	return found, nil
}

// open returns the endpoints whose lists are to be written and could pass more than the State allows.
func (b *Backend) open(have *inventory, s *model.State, plan *acl.Plan) map[model.EndpointID]bool {
	var written []model.EndpointID
	for _, step := range plan.Steps {
		if step.Action == acl.WriteList {
			written = append(written, step.Endpoint)
		}
	}
	open := acl.Open(have.only(s), written, b.options, &have.Ruleset)
	for _, id := range written {
		closed := len(have.before[id]) == 0 && acl.Equal(have.Lists[id], acl.DenyAll())
		open[id] = open[id] || !closed && !acl.Equal(have.before[id], b.precedingOf(plan.Target.Lists[id]))
	}
	return open
}
