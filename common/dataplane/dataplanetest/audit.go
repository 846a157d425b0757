// SPDX-License-Identifier: Apache-2.0

package dataplanetest

import (
	"context"
	"maps"
	"slices"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

var (
	_ dataplane.Auditor = (*Fake)(nil)
	_ dataplane.Checker = (*Fake)(nil)
)

// Check implements Checker. It is not a step for faults: the agent calls it by the clock.
func (f *Fake) Check(context.Context) ([]dataplane.Installed, error) {
	if err := f.enter(); err != nil {
		return nil, err
	}
	defer f.leave()
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []dataplane.Installed
	for _, id := range slices.Sorted(maps.Keys(f.attached)) {
		e := f.attached[id]
		if !e.unenforced() {
			continue
		}
		i := dataplane.Installed{ID: id, Unenforced: true}
		for _, part := range e.missing() {
			i.Problems = append(i.Problems, part+" is missing")
		}
		all = append(all, i)
	}
	return all, nil
}

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

// openTable is the table of Open.
var openTable = model.TableID{0xff}

// Open lets all traffic of an endpoint pass, as another program might.
func (f *Fake) Open(id model.EndpointID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.inForce == nil {
		return
	}
	s := *f.inForce
	s.Policy.Endpoints, s.Policy.Tables = maps.Clone(s.Policy.Endpoints), maps.Clone(s.Policy.Tables)
	e := s.Policy.Endpoints[id]
	e.Table = openTable
	side := model.Side{Default: &model.Row{Cells: []model.Decision{{Verdict: model.Allow}}}}
	s.Policy.Endpoints[id], s.Policy.Tables[openTable] = e, &model.Table{ID: openTable, Sides: [2]model.Side{side, side}}
	f.inForce = &s
}

// AuditedObjects implements ObjectLister.
func (f *Fake) AuditedObjects() []string { return []string{"table"} }

// ReadDecisions implements dataplane.Reader. The State has no pods and addresses, as one read from maps.
func (f *Fake) ReadDecisions(context.Context) (dataplane.Decisions, error) {
	if err := f.enter(); err != nil {
		return dataplane.Decisions{}, err
	}
	defer f.leave()
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &model.State{}
	if f.inForce != nil {
		*s = *f.inForce
	}
	s.Policy.Endpoints = make(map[model.EndpointID]model.EndpointState)
	if f.inForce != nil {
		for id, e := range f.inForce.Policy.Endpoints {
			s.Policy.Endpoints[id] = model.EndpointState{Table: e.Table}
		}
	}
	return dataplane.Decisions{State: s}, nil
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
			open := f.inForce != nil && f.inForce.Policy.Endpoints[id].Table == openTable
			found = append(found, dataplane.Drift{Object: "table", Endpoint: id, Open: open, Detail: "another table is in force"})
		}
	}
	return found, nil
}
