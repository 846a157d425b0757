// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
)

// DeleteEndpoint implements dataplane.Backend.
func (b *Backend) DeleteEndpoint(ctx context.Context, id model.EndpointID) error {
	return b.DeleteEndpoints(ctx, []model.EndpointID{id})[0]
}

// DeleteEndpoints implements dataplane.BatchDeleter. It removes the veth pairs first, because a
// pair without programs must not carry packets.
func (b *Backend) DeleteEndpoints(_ context.Context, ids []model.EndpointID) []error {
	errs := make([]error, len(ids))
	var unknown error
	if b.layout == nil {
		unknown = b.readBack()
	}
	var leaving []model.EndpointID
	var at []int // their indexes in ids
	for i, id := range ids {
		if errs[i] = unknown; unknown == nil {
			errs[i] = b.components.RemoveEndpoint(id)
		}
		if errs[i] == nil {
			leaving, at = append(leaving, id), append(at, i)
		}
	}
	if b.cfg.PolicyOnly {
		for n, id := range leaving {
			errs[at[n]] = b.closeForeign(id)
		}
		return errs
	}
	b.step("delete pair")
	deleted := link.DeletePairs(leaving)
	indexes, err := b.indexes()
	for n, i := range at {
		if errs[i] = deleted[n]; errs[i] == nil {
			errs[i] = err
		}
		if errs[i] == nil {
			errs[i] = b.forget(ids[i], indexes)
		}
	}
	return errs
}

// indexes returns the interfaces of each slot.
func (b *Backend) indexes() (map[uint32][]int, error) {
	known, err := b.path.Endpoints()
	of := make(map[uint32][]int, len(known))
	for index, e := range known {
		of[e.Slot] = append(of[e.Slot], index)
	}
	return of, err
}

// forget removes the map entries and the state of an endpoint whose veth pair is gone.
func (b *Backend) forget(id model.EndpointID, indexes map[uint32][]int) error {
	b.step("unpin links")
	if err := b.path.Detach(link.HostName(id)); err != nil {
		return err
	}
	delete(b.specs, id)
	delete(b.linked, id)
	delete(b.pods, id)
	slot, ok := b.layout.DropSlot(id)
	if !ok {
		return nil
	}
	b.step("forget endpoint")
	for _, index := range indexes[slot.Index] {
		if err := b.path.DropEndpoint(index); err != nil {
			return err
		}
	}
	return b.path.WriteSlot(slot)
}
