// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// Endpoints returns the map endpoints, by interface index.
func (d *DataPath) Endpoints() (map[int]bpfobj.PodEndpoint, error) {
	all := make(map[int]bpfobj.PodEndpoint)
	err := ReadMap(d.objects.Endpoints, func(k bpfobj.PodIfindex, v bpfobj.PodEndpoint) { all[int(k.Ifindex)] = v })
	return all, err
}

// PutEndpoint writes the endpoint of an interface, and lets other pods of this node reach it.
func (d *DataPath) PutEndpoint(ifindex int, e bpfobj.PodEndpoint) error {
	return d.putEndpoint(ifindex, e, true)
}

// PutQueuedEndpoint writes the endpoint of a pod with a bandwidth limit. Its packets must pass
// the qdiscs of its interface, so no fast path leads to or from it.
func (d *DataPath) PutQueuedEndpoint(ifindex int, e bpfobj.PodEndpoint) error {
	if err := d.forgetAddresses(bpfobj.PodIfindex{Ifindex: uint32(ifindex)}, bpfobj.PodEndpoint{}); err != nil {
		return fmt.Errorf("replace endpoint of interface %d: %w", ifindex, err)
	}
	return d.putEndpoint(ifindex, e, false)
}

func (d *DataPath) putEndpoint(ifindex int, e bpfobj.PodEndpoint, direct bool) error {
	key := bpfobj.PodIfindex{Ifindex: uint32(ifindex)}
	if err := d.forgetAddresses(key, e); err != nil {
		return fmt.Errorf("replace endpoint of interface %d: %w", ifindex, err)
	}
	err := d.interfaces.withdraw(key.Ifindex, e)
	if err == nil {
		err = d.objects.Endpoints.Put(key, e)
	}
	d.want.endpoints[key] = e
	if err == nil {
		err = d.interfaces.put(key.Ifindex, e)
	}
	if err != nil {
		return fmt.Errorf("write endpoint of interface %d: %w", ifindex, err)
	}
	a := bpfobj.PodAttachment{Mac: e.Mac, HostMac: e.HostMac, Ifindex: uint32(ifindex)}
	d.want.attachments[e.Slot] = a
	if !direct {
		a = bpfobj.PodAttachment{}
		delete(d.want.attachments, e.Slot)
	}
	if err := d.objects.Attachments.Put(e.Slot, a); err != nil {
		return fmt.Errorf("write attachment of interface %d: %w", ifindex, err)
	}
	if !direct {
		return nil
	}
	for _, ip := range addresses(e) {
		m, key := d.localKey(ip)
		d.want.locals[ip] = e.Slot
		if err := m.Put(key, bpfobj.PodSlotIndex{Slot: e.Slot}); err != nil {
			return fmt.Errorf("write slot of %s: %w", ip, err)
		}
	}
	return nil
}

// DropEndpoint removes the endpoint of an interface. An unknown interface is not an error.
func (d *DataPath) DropEndpoint(ifindex int) error {
	key := bpfobj.PodIfindex{Ifindex: uint32(ifindex)}
	if err := d.forgetAddresses(key, bpfobj.PodEndpoint{}); err != nil {
		return fmt.Errorf("remove endpoint of interface %d: %w", ifindex, err)
	}
	delete(d.want.endpoints, key)
	if err := errors.Join(d.interfaces.drop(key.Ifindex), drop(d.objects.Endpoints, key)); err != nil {
		return fmt.Errorf("remove endpoint of interface %d: %w", ifindex, err)
	}
	return nil
}

// forgetAddresses removes the entries that lead other pods to an interface, except those that
// next keeps. It does not touch addresses that another interface has now.
func (d *DataPath) forgetAddresses(key bpfobj.PodIfindex, next bpfobj.PodEndpoint) error {
	was, known := d.want.endpoints[key]
	if !known {
		if err := d.objects.Endpoints.Lookup(key, &was); errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		} else if err != nil {
			return err
		}
	}
	stays := make(map[netip.Addr]bool)
	for _, ip := range addresses(next) {
		stays[ip] = true
	}
	for _, ip := range addresses(was) {
		if slot, ok := d.want.locals[ip]; ok && slot == was.Slot && !stays[ip] {
			delete(d.want.locals, ip)
		}
		var slot bpfobj.PodSlotIndex
		m, local := d.localKey(ip)
		err := m.Lookup(local, &slot)
		if err == nil && slot.Slot == was.Slot && !stays[ip] {
			err = drop(m, local)
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	var a bpfobj.PodAttachment
	if err := d.objects.Attachments.Lookup(was.Slot, &a); errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil // no agent assigns such a slot
	} else if err != nil {
		return err
	}
	leaves := next.Slot != was.Slot || next == bpfobj.PodEndpoint{}
	if leaves && d.want.attachments[was.Slot].Ifindex == key.Ifindex {
		delete(d.want.attachments, was.Slot)
	}
	if leaves && a.Ifindex == key.Ifindex {
		return d.objects.Attachments.Put(was.Slot, bpfobj.PodAttachment{})
	}
	return nil
}

// addresses lists the addresses of an endpoint.
func addresses(e bpfobj.PodEndpoint) (all []netip.Addr) {
	if e.Ip4 != [4]byte{} {
		all = append(all, netip.AddrFrom4(e.Ip4))
	}
	if e.Ip6 != [16]byte{} {
		all = append(all, netip.AddrFrom16(e.Ip6))
	}
	return all
}

func (d *DataPath) localKey(a netip.Addr) (*ebpf.Map, any) {
	if a.Is6() {
		return d.objects.Locals6, bpfobj.PodAddr6{Addr: a.As16()}
	}
	return d.objects.Locals4, bpfobj.PodAddr4{Addr: a.As4()}
}

// Further addresses are those that another CNI plugin gave a pod besides the ones in its endpoint. There is no fast
// path on such nodes, so the maps locals4 and locals6 are free for them.

// openFurther reads the further addresses that are in force.
func (d *DataPath) openFurther() error {
	d.want.further = make(map[netip.Addr]uint32)
	if !d.foreign {
		return nil
	}
	err := ReadMap(d.objects.Locals4, func(k bpfobj.PodAddr4, v bpfobj.PodSlotIndex) { d.want.further[netip.AddrFrom4(k.Addr)] = v.Slot })
	if err != nil {
		return err
	}
	return ReadMap(d.objects.Locals6, func(k bpfobj.PodAddr6, v bpfobj.PodSlotIndex) { d.want.further[netip.AddrFrom16(k.Addr)] = v.Slot })
}

// MaxFurther is the number of further addresses of one IP version that fit.
func (d *DataPath) MaxFurther() int { return int(d.objects.Locals4.MaxEntries()) }

// RemoveFurther removes the further addresses for which f returns true. slot is that of the pod.
func (d *DataPath) RemoveFurther(f func(a netip.Addr, slot uint32) bool) error {
	for a, slot := range maps.Clone(d.want.further) {
		if !f(a, slot) {
			continue
		}
		m, key := d.localKey(a)
		if err := drop(m, key); err != nil {
			return fmt.Errorf("remove further address %s: %w", a, err)
		}
		delete(d.want.further, a)
	}
	return nil
}

// PutFurther gives further addresses to slots.
func (d *DataPath) PutFurther(all map[netip.Addr]uint32) error {
	for a, slot := range all {
		if was, ok := d.want.further[a]; ok && was == slot {
			continue
		}
		m, key := d.localKey(a)
		d.want.further[a] = slot
		if err := m.Put(key, bpfobj.PodSlotIndex{Slot: slot}); err != nil {
			return fmt.Errorf("write slot of further address %s: %w", a, err)
		}
	}
	return nil
}
