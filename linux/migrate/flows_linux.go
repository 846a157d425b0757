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
	"github.com/isthmus-net/isthmus/linux/flowtable"
)

// indexes are the maps whose keys are those of flows. Up to layout v3, they were the flow tables.
var indexes = map[string]string{"conns4": "conn_index4", "conns6": "conn_index6"}

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
	seen  int // offset of the field seen in values of the older layout
	// version is the offset of the version in entries of an array.
	version int
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
	if err := c.convert(types, spec); err != nil {
		m.Close()
		return fmt.Errorf("prepare the flows of map %s: %w", name, err)
	}
	c.seen = c.conn.From("seen")
	c.fields = FlowFields{End: c.conn.Copies("end", "flow_flags"), Backend: c.conn.Copies("backend", "backend_port"), Client: c.conn.Copies("client")}
	o.flows = append(o.flows, c)
	return nil
}

// convert computes how to convert the keys and flows of the older layout. Up to v3, the table is
// a hash of flows. Since v4, it is an array of entries with key and flow.
func (c *flowSource) convert(types *btf.Spec, spec *ebpf.CollectionSpec) (err error) {
	flow, err := shapeByName(spec.Types, "carried_flow")
	if err != nil {
		return err
	}
	key := spec.Maps[indexes[c.name]].Key
	if c.from.Type() != ebpf.Array {
		if c.key, err = convert(types, key, c.from.KeySize(), keyFields...); err != nil {
			return err
		}
		from, err := shapeOfMap(types, "conn", c.from.ValueSize())
		if err != nil {
			return err
		}
		c.conn, err = convertFlow(from, flow)
		return err
	}
	entry, err := shapeOfMap(types, spec.Maps[c.name].Value.TypeName(), c.from.ValueSize())
	if err != nil {
		return err
	}
	if c.version = entry.offset("conn.version"); c.version < 0 {
		return errors.New("field conn.version is missing")
	}
	to, err := shapeOf(key)
	if err != nil {
		return err
	}
	if c.key, err = NewConversion(entry.within("key."), to, keyFields...); err != nil {
		return err
	}
	c.conn, err = convertFlow(entry.within("conn."), flow)
	return err
}

// keyFields are those that the keys of flows need.
var keyFields = []string{"addr", "port", "protocol"}

// convertFlow computes how to convert a flow of the older layout into a struct carried_flow.
func convertFlow(from, to Shape) (*Conversion, error) {
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

// each calls f for every flow, with what holds its key. Programs write meanwhile, so it may miss a flow that is created
// or removed at the same time.
func (c *flowSource) each(f func(key, value []byte) error) error {
	if c.from.Type() == ebpf.Array {
		return flowtable.Read(c.from, c.version, func(_ uint32, value []byte) error { return f(value, value) })
	}
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
	for range mergeTries {
		outcome, there, err := adopt(to.Adopt, a)
		if err != nil {
			return err
		}
		if outcome == bpfobj.FlowAdopted && a.Replace == 0 {
			sum.Alive++
		}
		if outcome != bpfobj.FlowKnown {
			return nil // without room, new flows need it more
		}
		if a.Replace != 0 { // a program has changed the flow since it was read
			a.Conn, a.Replace = flow, 0
			continue
		}
		merged, write := MergeFlow(flow, there)
		if !write {
			return nil
		}
		a.Conn, a.Replace, a.Had, a.HadFlags = merged, 1, there.End, there.FlowFlags
	}
	return nil
}

// mergeTries is the number of attempts to read and replace a flow that programs change meanwhile.
const mergeTries = 8

// adopt runs adopt_flow once. If the table has the flow, it returns that flow.
func adopt(program *ebpf.Program, a bpfobj.PodAdoption) (outcome uint32, there bpfobj.PodConn, err error) {
	var data bytes.Buffer
	if err := binary.Write(&data, binary.NativeEndian, a); err != nil {
		return 0, there, err
	}
	run := ebpf.RunOptions{Data: data.Bytes(), DataOut: make([]byte, data.Len())}
	if outcome, err = program.Run(&run); err != nil {
		return 0, there, fmt.Errorf("migrate a flow: %w", err)
	}
	var after bpfobj.PodAdoption
	if err := decode(run.DataOut, &after); err != nil {
		return 0, there, fmt.Errorf("migrate a flow: %w", err)
	}
	return outcome, after.Conn, nil
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

// AdoptionOf decodes the key of a flow.
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
