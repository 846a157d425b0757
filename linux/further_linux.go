// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
)

// further are the addresses that another CNI plugin gave pods besides those of their endpoints.
type further struct {
	// wanted are those of the last State.
	wanted map[model.EndpointID][]netip.Addr
	// inForce are the endpoints of those that programs know. It is empty after a restart, until the next Apply.
	inForce map[netip.Addr]model.EndpointID
	// refused describe those that the node cannot leave to a pod.
	refused []string
}

// has lists the further addresses of an endpoint that are in force.
func (f *further) has(id model.EndpointID) (all []netip.Addr) {
	for a, owner := range f.inForce {
		if owner == id {
			all = append(all, a)
		}
	}
	return all
}

// resolveFurther returns the wanted addresses that fit and that the node does not have itself, with the slots of their pods.
func (b *Backend) resolveFurther() (map[netip.Addr]model.EndpointID, error) {
	f := &b.ends.further
	f.refused = nil
	all := make(map[netip.Addr]model.EndpointID)
	if len(f.wanted) == 0 {
		return all, nil
	}
	own, err := link.OwnAddresses()
	if err != nil {
		return nil, err
	}
	var n [2]int // by IP version
	for _, id := range slices.Sorted(maps.Keys(f.wanted)) {
		for _, a := range f.wanted[id] {
			v := 0
			if a.Is6() {
				v = 1
			}
			if n[v]++; n[v] > b.path.MaxFurther() {
				f.refuse(b.pods[id], a, fmt.Sprintf("this node has room for %d further addresses: give pods fewer", b.path.MaxFurther()))
			} else if slices.Contains(own, a) {
				f.refuse(b.pods[id], a, "an interface of this node has it: let the network plugin assign another")
			} else {
				all[a] = id
			}
		}
	}
	return all, nil
}

func (f *further) refuse(pod model.PodID, a netip.Addr, why string) {
	f.refused = append(f.refused, fmt.Sprintf("pod %s: packets from and to its further address %s are dropped: %s", pod, a, why))
}

// slotsOf returns the slots of addresses.
func (b *Backend) slotsOf(all map[netip.Addr]model.EndpointID) map[netip.Addr]uint32 {
	slots := make(map[netip.Addr]uint32, len(all))
	for a, id := range all {
		if slot, ok := b.layout.Slot(id); ok {
			slots[a] = slot
		}
	}
	return slots
}

// withdrawFurther takes away the addresses that the next State does not leave to a pod, before policy changes: another object
// may have them.
func (b *Backend) withdrawFurther(s *model.State) error {
	if b.ends.Registry == nil {
		return nil
	}
	f := &b.ends.further
	f.wanted = make(map[model.EndpointID][]netip.Addr)
	for id, e := range s.Policy.Endpoints {
		if len(e.Further) > 0 {
			f.wanted[id] = e.Further
		}
	}
	next, err := b.resolveFurther()
	if err != nil {
		return err
	}
	return b.keepFurther(next)
}

// keepFurther removes all further addresses but those that stay with their endpoint.
func (b *Backend) keepFurther(next map[netip.Addr]model.EndpointID) error {
	maps.DeleteFunc(b.ends.further.inForce, func(a netip.Addr, id model.EndpointID) bool { return next[a] != id })
	slots := b.slotsOf(next)
	return b.path.RemoveFurther(func(a netip.Addr, slot uint32) bool {
		want, ok := slots[a]
		return !ok || want != slot
	})
}

// giveFurther gives pods the addresses of the last State, once policy knows them.
func (b *Backend) giveFurther() error {
	if b.ends.Registry == nil {
		return nil
	}
	next, err := b.resolveFurther()
	if err != nil {
		return err
	}
	b.step("write further addresses")
	err = errors.Join(b.keepFurther(next), b.path.PutFurther(b.slotsOf(next)))
	if err == nil {
		b.ends.further.inForce = next
	}
	return err
}

// followFurther takes addresses away that an interface of the node got, and gives those back that it lost.
func (b *Backend) followFurther() error {
	if len(b.ends.further.wanted) == 0 {
		return nil
	}
	next, err := b.resolveFurther()
	if err != nil || maps.Equal(next, b.ends.further.inForce) {
		return err
	}
	return b.giveFurther()
}

// dropFurther removes the further addresses of a slot: its next endpoint must not have them.
func (b *Backend) dropFurther(id model.EndpointID, slot uint32) error {
	f := &b.ends.further
	delete(f.wanted, id)
	maps.DeleteFunc(f.inForce, func(_ netip.Addr, owner model.EndpointID) bool { return owner == id })
	return b.path.RemoveFurther(func(_ netip.Addr, s uint32) bool { return s == slot })
}

// takeFurther removes addresses that a new endpoint has from the further ones of others.
func (b *Backend) takeFurther(ips []netip.Addr) error {
	maps.DeleteFunc(b.ends.further.inForce, func(a netip.Addr, _ model.EndpointID) bool { return slices.Contains(ips, a) })
	return b.path.RemoveFurther(func(a netip.Addr, _ uint32) bool { return slices.Contains(ips, a) })
}
