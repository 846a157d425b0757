// SPDX-License-Identifier: Apache-2.0

package dataplanetest

import (
	"context"
	"maps"
	"slices"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

var _ dataplane.Auditor = (*Fake)(nil)

// Tamper removes an endpoint from the state in force, as another program might: all its traffic is denied.
func (f *Fake) Tamper(id model.EndpointID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.inForce != nil {
		s := *f.inForce
		s.Policy.Endpoints = maps.Clone(s.Policy.Endpoints)
		delete(s.Policy.Endpoints, id)
		f.inForce = &s
	}
}

// Audit implements Auditor. It returns the endpoints that are under a wrong table.
func (f *Fake) Audit(ctx context.Context, s *model.State) ([]dataplane.Drift, error) {
	if err := f.enter(); err != nil {
		return nil, err
	}
	defer f.leave()
	if err := f.step(ctx, "audit"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []dataplane.Drift
	for _, id := range slices.Sorted(maps.Keys(s.Policy.Endpoints)) {
		if f.attached[id] != nil && (f.inForce == nil || f.inForce.Policy.Endpoints[id].Table != s.Policy.Endpoints[id].Table) {
			found = append(found, dataplane.Drift{Object: "table", Endpoint: id, Detail: "another table is in force"})
		}
	}
	return found, nil
}
