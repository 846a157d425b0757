// SPDX-License-Identifier: Apache-2.0

package dataplanetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// Apply implements Backend. An endpoint whose decisions cannot be applied is reported as an EndpointError
// and keeps the old ones.
func (f *Fake) Apply(ctx context.Context, s *model.State) ([]model.Unsupported, error) {
	if err := f.enter(); err != nil {
		return nil, err
	}
	defer f.leave()
	if s == nil {
		return nil, errors.New("apply: no state")
	}
	f.mu.Lock()
	poison := f.poison
	f.mu.Unlock()
	if poison != nil {
		if err := poison(s); err != nil {
			return nil, fmt.Errorf("apply: %w", err)
		}
	}
	var errs []error
	accepted := *s
	accepted.Policy.Endpoints = maps.Clone(s.Policy.Endpoints)
	for _, id := range slices.Sorted(maps.Keys(s.Policy.Endpoints)) {
		if err := f.checkEndpoint(s, id); err != nil {
			errs = append(errs, &dataplane.EndpointError{ID: id, Err: err})
			delete(accepted.Policy.Endpoints, id)
		}
	}
	f.mu.Lock()
	old := f.inForce
	f.mu.Unlock()
	if old != nil {
		keepRefused(&accepted, old, s)
	}
	for i, next := range dataplane.Plan(old, &accepted) {
		if err := f.step(ctx, fmt.Sprintf("apply.%d", i)); err != nil {
			return nil, errors.Join(append(errs, err)...)
		}
		f.mu.Lock()
		f.inForce = next
		f.mu.Unlock()
	}
	named := slices.Sorted(maps.Keys(accepted.Policy.Endpoints))
	words := []string{"apply"}
	for _, id := range named {
		words = append(words, string(id))
	}
	f.done(words...)
	f.mu.Lock()
	f.applied++
	f.mu.Unlock()
	return nil, errors.Join(errs...)
}

// keepRefused keeps rejected endpoints of s under the table in force, if s still has it.
func keepRefused(accepted, old, s *model.State) {
	for id := range s.Policy.Endpoints {
		if _, ok := accepted.Policy.Endpoints[id]; ok {
			continue
		}
		if was, ok := old.Policy.Endpoints[id]; ok && s.Policy.Tables[was.Table] != nil {
			accepted.Policy.Endpoints[id] = was
		}
	}
}

func (f *Fake) checkEndpoint(s *model.State, id model.EndpointID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, want := f.attached[id], s.Policy.Endpoints[id]
	switch {
	case e == nil:
		return errors.New("is not attached")
	case len(e.missing()) > 0:
		return fmt.Errorf("lacks %s", strings.Join(e.missing(), ", "))
	case !slices.Equal(e.spec.IPs, want.IPs):
		return fmt.Errorf("has addresses %v, the state has %v", e.spec.IPs, want.IPs)
	case s.Policy.Tables[want.Table] == nil:
		return fmt.Errorf("table %s is not in the state", want.Table)
	}
	return nil
}

// InForce implements Backend. Like maps in a kernel it keeps numbers and verdicts, but not what they mean.
func (f *Fake) InForce(ctx context.Context) (*model.State, error) {
	if err := f.enter(); err != nil {
		return nil, err
	}
	defer f.leave()
	if err := f.step(ctx, "inforce"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.inForce == nil {
		return nil, nil
	}
	s := *f.inForce
	s.Policy.PeerTerms, s.Policy.PeerNames = nil, nil
	s.Policy.PeerClasses = slices.Clone(s.Policy.PeerClasses)
	for i, c := range s.Policy.PeerClasses {
		s.Policy.PeerClasses[i] = model.PeerClassInfo{Class: c.Class}
	}
	s.Policy.PortClasses = slices.Clone(s.Policy.PortClasses)
	for i, c := range s.Policy.PortClasses {
		s.Policy.PortClasses[i] = model.PortClassInfo{Class: c.Class}
	}
	s.Policy.Tables = make(map[model.TableID]*model.Table, len(f.inForce.Policy.Tables))
	for id, t := range f.inForce.Policy.Tables {
		s.Policy.Tables[id] = withoutCauses(t)
	}
	return &s, nil
}

func withoutCauses(t *model.Table) *model.Table {
	bare := func(r *model.Row) *model.Row {
		c := &model.Row{Cells: slices.Clone(r.Cells)}
		for i := range c.Cells {
			c.Cells[i].Cause = nil
		}
		return c
	}
	n := &model.Table{ID: t.ID}
	for d, side := range t.Sides {
		n.Sides[d] = model.Side{Default: bare(side.Default), Rows: side.Rows}
		for class, r := range side.Rows.All() {
			n.Sides[d].Rows = n.Sides[d].Rows.With(class, bare(r))
		}
	}
	return n
}
