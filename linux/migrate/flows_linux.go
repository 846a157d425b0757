// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// flowSource is the flow table of one IP version in an older layout.
type flowSource struct {
	name      string
	v6        bool
	from      *ebpf.Map
	key, conn *policymap.Conversion
	fields    policymap.MigratedFields
	// since is the start of the last pass in jiffies, 0 before the first. A flow without a
	// packet since then has not changed.
	since uint32
	seen  int // offset of the field seen in flows of the older layout
}

// Migrated counts migrated flows, expired flows, and flows with values that this layout does not
// know.
type Migrated struct{ Alive, Expired, Unknown int }

// openFlows prepares the migration of flows. The keys and the roles of flows must be
// convertible.
func (o *older) openFlows(name string, v6 bool, spec *ebpf.CollectionSpec) error {
	m, types, err := o.openMap(name)
	if err != nil {
		return err
	}
	c := flowSource{name: name, v6: v6, from: m}
	c.key, err = convert(types, spec.Maps[name].Key, m.KeySize(), "addr", "port", "protocol")
	if err == nil {
		c.conn, err = convertFlow(types, spec, m.ValueSize())
	}
	if err != nil {
		m.Close()
		return fmt.Errorf("prepare the flows of map %s: %w", name, err)
	}
	c.seen = c.conn.From("seen")
	c.fields = policymap.MigratedFields{End: c.conn.Copies("end", "flow_flags"), Backend: c.conn.Copies("backend", "backend_port"), Client: c.conn.Copies("client")}
	o.flows = append(o.flows, c)
	return nil
}

// convertFlow computes how to convert a flow of the older layout into a struct carried_flow.
func convertFlow(types *btf.Spec, spec *ebpf.CollectionSpec, size uint32) (*policymap.Conversion, error) {
	to, err := shapeByName(spec.Types, "carried_flow")
	if err != nil {
		return nil, err
	}
	from, err := shapeByName(types, "conn")
	if err != nil {
		return nil, err
	}
	if from.Size != int(size) {
		return nil, fmt.Errorf("struct conn has %d bytes, the map's have %d", from.Size, size)
	}
	c, err := policymap.NewConversion(from, to, "seen", "state")
	if err == nil && !c.Copies("side") && !c.Copies("end") {
		err = errors.New("field side or end is missing or has another size")
	}
	return c, err
}

// MigrateFlows copies the flows of the older layout. A repeated call copies the flows that had
// packets meanwhile. Flows that our programs have decided stay unchanged, see
// policymap.MergeFlow. It returns the counts of all calls.
func (d *DataPath) MigrateFlows() (Migrated, error) {
	if d.older == nil {
		return Migrated{}, nil
	}
	limits, err := d.readLimits()
	if err != nil {
		return d.older.migrated, err
	}
	clock, err := newClock()
	if err != nil {
		return d.older.migrated, fmt.Errorf("load the clock of flows: %w", err)
	}
	defer clock.Close()
	slots := d.slotsByAddress()
	for i := range d.older.flows {
		c := &d.older.flows[i]
		now, err := jiffies(clock)
		if err != nil {
			return d.older.migrated, fmt.Errorf("read the clock of flows: %w", err)
		}
		to := flowTarget{limits: limits, now: now, slots: slots, flows: d.maps()[c.name]}
		if err := c.each(func(key, value []byte) error { return d.migrateFlow(c, to, key, value) }); err != nil {
			return d.older.migrated, fmt.Errorf("migrate flows of map %s: %w", c.name, err)
		}
		c.since = max(now, 1)
	}
	return d.older.migrated, nil
}

// each calls f for every flow. Programs write meanwhile, so it may miss a flow that is created
// or removed at the same time.
func (c *flowSource) each(f func(key, value []byte) error) error {
	list := func(size uint32, n int) reflect.Value {
		return reflect.MakeSlice(reflect.SliceOf(reflect.ArrayOf(int(size), reflect.TypeFor[byte]())), n, n)
	}
	var at ebpf.MapBatchCursor
	for size, done := 256, false; !done; {
		keys, values := list(c.from.KeySize(), size), list(c.from.ValueSize(), size)
		n, err := c.from.BatchLookup(&at, keys.Interface(), values.Interface(), nil)
		switch {
		case errors.Is(err, unix.ENOSPC) && size < 1<<16:
			size *= 2
			continue
		case errors.Is(err, ebpf.ErrKeyNotExist):
			done = true
		case err != nil:
			return err
		}
		for i := range n {
			if err := f(keys.Index(i).Bytes(), values.Index(i).Bytes()); err != nil {
				return err
			}
		}
	}
	return nil
}

// flowTarget holds what the migration into our flow table needs.
type flowTarget struct {
	limits flowLimits
	now    uint32                // in jiffies
	slots  map[netip.Addr]uint32 // of the pods of this node
	flows  *ebpf.Map             // the flow table of our layout
}

// slotsByAddress returns the slots of the pods that the older layout knows.
func (d *DataPath) slotsByAddress() map[netip.Addr]uint32 {
	slots := make(map[netip.Addr]uint32)
	for _, e := range d.older.endpoints {
		for _, ip := range addresses(e) {
			slots[ip] = e.Slot
		}
	}
	return slots
}

// migrateFlow migrates one flow, unless it has expired or is migrated already.
func (d *DataPath) migrateFlow(c *flowSource, to flowTarget, key, value []byte) error {
	if c.since != 0 && int32(binary.NativeEndian.Uint32(value[c.seen:])-c.since) < 0 {
		return nil
	}
	var was bpfobj.PodCarriedFlow
	if err := decode(c.conn.Convert(value), &was); err != nil {
		return err
	}
	sum := &d.older.migrated
	flow, known := policymap.MigrateFlow(was, c.fields)
	if !known {
		sum.Unknown++
		return nil
	}
	place := c.key.Convert(key)
	a, ends, protocol, err := adoptionOf(place, c.v6)
	if err != nil {
		return err
	}
	if to.limits.expired(&flow, protocol, to.now) {
		sum.Expired++
		return nil
	}
	a.Conn = flow
	for i, end := range ends {
		a.Slots[i] = bpfobj.NoSlot
		if slot, here := to.slots[end]; here {
			a.Slots[i] = slot
		}
	}
	var data bytes.Buffer
	if err := binary.Write(&data, binary.NativeEndian, a); err != nil {
		return err
	}
	outcome, err := d.objects.AdoptFlow.Run(&ebpf.RunOptions{Data: data.Bytes()})
	if err != nil {
		return fmt.Errorf("migrate a flow: %w", err)
	}
	if outcome != bpfobj.FlowKnown {
		if outcome == bpfobj.FlowAdopted {
			sum.Alive++
		}
		return nil // new flows need the room more
	}
	var there bpfobj.PodConn
	if err := to.flows.Lookup(place, &there); errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if merged, write := policymap.MergeFlow(flow, there); write {
		return to.flows.Put(place, &merged)
	}
	return nil
}

// adoptionOf decodes a key of conns4 or conns6.
func adoptionOf(key []byte, v6 bool) (a bpfobj.PodAdoption, ends [2]netip.Addr, protocol uint8, err error) {
	if v6 {
		a.V6 = 1
		err = decode(key, &a.Key6)
		for i, addr := range a.Key6.Addr {
			ends[i] = netip.AddrFrom16(addr)
		}
		return a, ends, a.Key6.Protocol, err
	}
	err = decode(key, &a.Key4)
	for i, addr := range a.Key4.Addr {
		ends[i] = netip.AddrFrom4(addr)
	}
	return a, ends, a.Key4.Protocol, err
}

// TakeLinks gives the links of the older layout on an interface our programs, by one atomic
// replacement each, and moves their pins to our layout. Without such links it does nothing.
func (d *DataPath) TakeLinks(name string) error {
	if d.older == nil {
		return nil
	}
	for _, h := range d.hooks() {
		was := filepath.Join(d.older.dir, "links", name+h.suffix)
		if _, err := os.Lstat(was); errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return fmt.Errorf("find the pinned link %s: %w", was, err)
		}
		if err := d.adoptLink(was, h.attach, h.prog); err != nil {
			return err
		}
		if err := d.pins.forget(was); err != nil { // the pin keeps the link attached
			return err
		}
		// The pin disappears with the interface.
		if err := os.Rename(was, d.pin(name, h)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("move the pinned link %s: %w", was, err)
		}
	}
	return nil
}

// DecideAlone must be called when our programs are on every interface. From then on every
// packet of a pod must have a mark of ours, as soon as HookEgress has run again.
func (d *DataPath) DecideAlone() error {
	if d.older == nil || d.older.alone {
		return nil
	}
	d.older.alone = true
	was := d.egress
	d.egress = egress{}
	if err := d.loadEgress(); err != nil {
		d.older.alone, d.egress = false, was
		return err
	}
	return errors.Join(d.keepMaps(), was.close())
}

// Alone reports whether no program of an older layout is needed any more.
func (d *DataPath) Alone() bool { return d.older == nil || d.older.alone }

// RemoveOlder removes the older layout. It renames the directory first, so that no agent takes
// a partly removed layout for one in force.
func (d *DataPath) RemoveOlder() error {
	if d.older == nil {
		return nil
	}
	retired := d.older.dir + retiredSuffix
	if err := os.RemoveAll(retired); err != nil {
		return fmt.Errorf("remove %s: %w", retired, err)
	}
	if err := os.Rename(d.older.dir, retired); err != nil {
		return fmt.Errorf("retire the directory of layout %s: %w", d.older.name, err)
	}
	err := d.older.close()
	for path := range d.pins {
		if strings.HasPrefix(path, d.older.dir+"/") {
			err = errors.Join(err, d.pins.forget(path))
		}
	}
	d.older = nil
	err = errors.Join(err, d.dropDispatch(), os.RemoveAll(retired))
	// No other program reads records any more.
	if alone := d.objects.DecidesAlone.Set(uint32(1)); alone != nil {
		err = errors.Join(err, fmt.Errorf("set decides_alone: %w", alone))
	}
	return err
}
