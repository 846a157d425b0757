// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// Finding is one difference between the kernel and the intent of this process.
type Finding struct {
	// Object is the kind of object: the name of a map without its IP version, "link", "pin",
	// "netfilter" or "variable".
	Object string
	// Interface is set if the object belongs to an interface.
	Interface string
	Detail    string
}

// Drifts returns findings about objects that belong to no endpoint.
func Drifts(found []Finding) (all []dataplane.Drift) {
	for _, f := range found {
		all = append(all, dataplane.Drift{Object: f.Object, Detail: f.Detail})
	}
	return all
}

// intent holds what this process wrote to the maps that no State describes. The audit skips a
// nil field, because this process has not written it yet.
type intent struct {
	endpoints   map[bpfobj.PodIfindex]bpfobj.PodEndpoint
	locals      map[netip.Addr]uint32
	further     map[netip.Addr]uint32 // in the same maps as locals, see PutFurther
	attachments map[uint32]bpfobj.PodAttachment
	routes      map[netip.Prefix]bpfobj.PodNodeRoute
	owners      map[netip.Prefix]bpfobj.PodOwnerEntry
	senders     map[bpfobj.PodAddr6]bpfobj.EgressTunnelNode
	sources     map[netip.Prefix]bpfobj.EgressTunnelNode
	kinds       map[bpfobj.PodTunnelKind]bpfobj.PodIfindex
}

// ComparePolicy compares the policy maps with their intended content.
func (d *DataPath) ComparePolicy(want *policymap.Entries) (*policymap.Comparison, error) {
	is, err := d.read(want)
	if err != nil {
		return nil, err
	}
	return policymap.Compare(want, is), nil
}

// check audits one object other than the policy maps.
type check struct {
	object string
	// find returns one text for each difference.
	find func() ([]string, error)
	// repair restores the intended content, and changes nothing that is correct.
	repair func() error
}

// checks lists the objects that this process wrote, other than policy. alive holds the
// interfaces of pods. If this process does not know an interface yet, its entries stay.
func (d *DataPath) checks(alive map[int]bool) ([]check, error) {
	o, t, w := &d.objects, &d.egress.tunnels, d.want
	endpoints, locals, attachments, err := d.wantedEndpoints(alive)
	if err != nil {
		return nil, err
	}
	locals4, locals6 := make(map[bpfobj.PodAddr4]bpfobj.PodSlotIndex), make(map[bpfobj.PodAddr6]bpfobj.PodSlotIndex)
	for a, slot := range locals {
		if a.Is4() {
			locals4[bpfobj.PodAddr4{Addr: a.As4()}] = bpfobj.PodSlotIndex{Slot: slot}
		} else {
			locals6[bpfobj.PodAddr6{Addr: a.As16()}] = bpfobj.PodSlotIndex{Slot: slot}
		}
	}
	all := []check{
		entriesCheck("endpoints", o.Endpoints, endpoints),
		entriesCheck("locals", o.Locals4, locals4), entriesCheck("locals", o.Locals6, locals6),
		d.attachmentsCheck(attachments),
		{"interfaces", func() ([]string, error) { return d.interfaces.audit(endpoints, false) },
			func() error { _, err := d.interfaces.audit(endpoints, true); return err }},
		d.generationCheck(),
	}
	if w.routes != nil {
		all = append(all, prefixesCheck("node_routes", o.NodeRoutes4, o.NodeRoutes6, w.routes)...)
		all = append(all, variableCheck("forward_direct", o.ForwardDirect, direct(w.routes)))
	}
	if w.owners != nil {
		all = append(all, prefixesCheck("owners", o.Owners4, o.Owners6, w.owners)...)
	}
	if w.senders != nil {
		all = append(all, prefixesCheck("tunnel_sources", t.Sources4, t.Sources6, w.sources)...)
		all = append(all, entriesCheck("tunnel_nodes", t.Nodes, w.senders))
	}
	if w.kinds != nil {
		all = append(all, entriesCheck("tunnel_kinds", o.TunnelKinds, w.kinds))
	}
	if d.older == nil {
		all = append(all, variableCheck("decides_alone", o.DecidesAlone, 1))
	}
	return all, nil
}

// entriesCheck audits a map that must hold exactly the entries of want.
func entriesCheck[K, V comparable](object string, m *ebpf.Map, want map[K]V) check {
	return check{object, func() (found []string, err error) {
		seen := 0
		err = ReadMap(m, func(k K, v V) {
			w, wanted := want[canonical(k)]
			if wanted {
				seen++
			}
			if !wanted || w != v {
				found = append(found, fmt.Sprintf("entry %v is %v, wanted %t as %v", k, v, wanted, w))
			}
		})
		if seen < len(want) {
			found = append(found, fmt.Sprintf("%d entries are missing", len(want)-seen))
		}
		return found, err
	}, func() error { return setEntries(m, want) }}
}

// prefixesCheck audits the two tries of both IP versions.
func prefixesCheck[V comparable](object string, four, six *ebpf.Map, want map[netip.Prefix]V) []check {
	want4, want6 := byFamily(want)
	return []check{entriesCheck(object, four, want4), entriesCheck(object, six, want6)}
}

// variableCheck audits a variable of the programs.
func variableCheck(name string, v *ebpf.Variable, want uint32) check {
	return check{"variable", func() ([]string, error) {
		var now uint32
		if err := v.Get(&now); err != nil {
			return nil, fmt.Errorf("read variable %s: %w", name, err)
		}
		if now != want {
			return []string{fmt.Sprintf("%s is %d, not %d", name, now, want)}, nil
		}
		return nil, nil
	}, func() error {
		if err := v.Set(want); err != nil {
			return fmt.Errorf("write variable %s: %w", name, err)
		}
		return nil
	}}
}

// generationCheck audits the generation of the maps. It is enough that the next step uses another
// generation.
func (d *DataPath) generationCheck() check {
	return check{"generation", func() ([]string, error) {
		var buf [4]byte
		if _, err := d.generationAt.ReadAt(buf[:], 0); err != nil {
			return nil, fmt.Errorf("read the generation of the maps: %w", err)
		}
		if now := binary.NativeEndian.Uint32(buf[:]); now != d.generation {
			return []string{fmt.Sprintf("the generation is %d, not %d", now, d.generation)}, nil
		}
		return nil, nil
	}, d.beginGeneration}
}

// attachmentsCheck audits an array, whose unused entries are zero.
func (d *DataPath) attachmentsCheck(want map[uint32]bpfobj.PodAttachment) check {
	m := d.objects.Attachments
	differing := func() (found []uint32, err error) {
		err = ReadMap(m, func(slot uint32, a bpfobj.PodAttachment) {
			if a != want[slot] {
				found = append(found, slot)
			}
		})
		return found, err
	}
	return check{"attachments", func() (found []string, err error) {
		slots, err := differing()
		for _, slot := range slots {
			found = append(found, fmt.Sprintf("slot %d does not hold the interface and MAC addresses of its pod", slot))
		}
		return found, err
	}, func() error {
		slots, err := differing()
		for _, slot := range slots {
			if err := m.Put(slot, want[slot]); err != nil {
				return fmt.Errorf("write attachment of slot %d: %w", slot, err)
			}
		}
		return err
	}}
}

// wantedEndpoints returns the intended content of the maps endpoints, locals and attachments.
// It contains what this process wrote, and the current entries of other interfaces that exist.
func (d *DataPath) wantedEndpoints(alive map[int]bool) (map[bpfobj.PodIfindex]bpfobj.PodEndpoint, map[netip.Addr]uint32,
	map[uint32]bpfobj.PodAttachment, error) {
	endpoints, locals, attachments := maps.Clone(d.want.endpoints), maps.Clone(d.want.locals), maps.Clone(d.want.attachments)
	maps.Copy(locals, d.want.further)
	known, err := d.Endpoints()
	if err != nil {
		return nil, nil, nil, err
	}
	for index, e := range known {
		key := bpfobj.PodIfindex{Ifindex: uint32(index)}
		if _, ours := endpoints[key]; ours || !alive[index] {
			continue
		}
		endpoints[key] = e
		for _, ip := range addresses(e) {
			var slot bpfobj.PodSlotIndex
			m, local := d.localKey(ip)
			if m.Lookup(local, &slot) == nil && slot.Slot == e.Slot {
				locals[ip] = slot.Slot
			}
		}
		var a bpfobj.PodAttachment
		if d.objects.Attachments.Lookup(e.Slot, &a) == nil && a.Ifindex == key.Ifindex {
			attachments[e.Slot] = a
		}
	}
	return endpoints, locals, attachments, nil
}

// AuditMaps compares the maps that no State describes, and their pins, with the intent of this
// process. It changes nothing.
func (d *DataPath) AuditMaps(alive map[int]bool) (found []Finding, err error) {
	checks, err := d.checks(alive)
	if err != nil {
		return nil, err
	}
	for _, c := range checks {
		details, err := c.find()
		if err != nil {
			return nil, fmt.Errorf("audit %s: %w", c.object, err)
		}
		slices.Sort(details)
		for _, detail := range details {
			found = append(found, Finding{Object: c.object, Detail: detail})
		}
	}
	return append(found, d.auditPins()...), nil
}

// RepairMaps restores everything that AuditMaps compares.
func (d *DataPath) RepairMaps(alive map[int]bool) error {
	checks, err := d.checks(alive)
	if err != nil {
		return err
	}
	errs := []error{d.repairPins()}
	for _, c := range checks {
		if details, err := c.find(); err != nil || len(details) > 0 {
			errs = append(errs, err, c.repair())
		}
	}
	return errors.Join(errs...)
}
