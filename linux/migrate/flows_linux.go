// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"reflect"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/clock"
)

// flowSource is the flow table of one IP version in an older layout.
type flowSource struct {
	name      string
	v6        bool
	from      *ebpf.Map
	key, conn *Conversion
	fields    FlowFields
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
func (o *Layout) openFlows(name string, v6 bool, spec *ebpf.CollectionSpec) error {
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
	c.fields = FlowFields{End: c.conn.Copies("end", "flow_flags"), Backend: c.conn.Copies("backend", "backend_port"), Client: c.conn.Copies("client")}
	o.flows = append(o.flows, c)
	return nil
}

// convertFlow computes how to convert a flow of the older layout into a struct carried_flow.
func convertFlow(types *btf.Spec, spec *ebpf.CollectionSpec, size uint32) (*Conversion, error) {
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
	c, err := NewConversion(from, to, "seen", "state")
	if err == nil && !c.Copies("side") && !c.Copies("end") {
		err = errors.New("field side or end is missing or has another size")
	}
	return c, err
}

// Target holds what the migration of flows needs of our layout.
type Target struct {
	// Adopt is the program that stores a flow.
	Adopt  *ebpf.Program
	Limits Limits
	// Slots are those of the pods of this node, by address.
	Slots map[netip.Addr]uint32
	// Flows are the flow tables, by name.
	Flows map[string]*ebpf.Map

	now uint32 // in jiffies
}

// Slots returns the slots of the pods that the layout knows, by address.
func (o *Layout) Slots() map[netip.Addr]uint32 {
	slots := make(map[netip.Addr]uint32)
	for _, e := range o.Endpoints {
		if e.Ip4 != [4]byte{} {
			slots[netip.AddrFrom4(e.Ip4)] = e.Slot
		}
		if e.Ip6 != [16]byte{} {
			slots[netip.AddrFrom16(e.Ip6)] = e.Slot
		}
	}
	return slots
}

// MigrateFlows copies the flows of the layout. A repeated call copies the flows that had packets
// meanwhile. Flows that our programs have decided stay unchanged, see MergeFlow. It returns the
// counts of all calls.
func (o *Layout) MigrateFlows(to Target) (Migrated, error) {
	jiffies, err := clock.Open()
	if err != nil {
		return o.migrated, err
	}
	defer jiffies.Close()
	for i := range o.flows {
		c := &o.flows[i]
		if to.now, err = jiffies.Jiffies(); err != nil {
			return o.migrated, err
		}
		if err := c.each(func(key, value []byte) error { return o.migrateFlow(c, to, key, value) }); err != nil {
			return o.migrated, fmt.Errorf("migrate flows of map %s: %w", c.name, err)
		}
		c.since = max(to.now, 1)
	}
	return o.migrated, nil
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

// migrateFlow migrates one flow, unless it has expired or is migrated already.
func (o *Layout) migrateFlow(c *flowSource, to Target, key, value []byte) error {
	if c.since != 0 && int32(binary.NativeEndian.Uint32(value[c.seen:])-c.since) < 0 {
		return nil
	}
	var was bpfobj.PodCarriedFlow
	if err := decode(c.conn.Convert(value), &was); err != nil {
		return err
	}
	sum := &o.migrated
	flow, known := ConvertFlow(was, c.fields)
	if !known {
		sum.Unknown++
		return nil
	}
	place := c.key.Convert(key)
	a, ends, protocol, err := AdoptionOf(place, c.v6)
	if err != nil {
		return err
	}
	if to.Limits.Expired(&flow, protocol, to.now) {
		sum.Expired++
		return nil
	}
	a.Conn, a.Slots = flow, SlotsOf(ends, to.Slots)
	var data bytes.Buffer
	if err := binary.Write(&data, binary.NativeEndian, a); err != nil {
		return err
	}
	outcome, err := to.Adopt.Run(&ebpf.RunOptions{Data: data.Bytes()})
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
	flows := to.Flows[c.name]
	if err := flows.Lookup(place, &there); errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if merged, write := MergeFlow(flow, there); write {
		return flows.Put(place, &merged)
	}
	return nil
}

// SlotsOf returns the slots of both ends of a flow.
func SlotsOf(ends [2]netip.Addr, slots map[netip.Addr]uint32) (of [2]uint32) {
	for i, end := range ends {
		of[i] = bpfobj.NoSlot
		if slot, here := slots[end]; here {
			of[i] = slot
		}
	}
	return of
}

// AdoptionOf decodes a key of conns4 or conns6.
func AdoptionOf(key []byte, v6 bool) (a bpfobj.PodAdoption, ends [2]netip.Addr, protocol uint8, err error) {
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
