// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// carrier takes the flows of one family from an older layout to ours.
type carrier struct {
	name         string
	from         *ebpf.Map
	key, conn    *policymap.Conversion
	knowsBackend bool
	// since is when the last walk began, 0 before the first: what had no packet
	// after that is as it was.
	since uint32
	seen  int // where flows of the older layout say when that was
}

// Carried counts flows: those that were carried over, those that had expired,
// and those that have values which mean nothing here.
type Carried struct{ Alive, Expired, Unknown int }

// openFlows finds out how flows are carried over. What a key or the roles of a
// flow are has to be known.
func (o *older) openFlows(name string, spec *ebpf.CollectionSpec) error {
	m, types, err := o.openMap(name)
	if err != nil {
		return err
	}
	c := carrier{name: name, from: m}
	c.key, err = convert(types, spec.Maps[name].Key, m.KeySize(), "addr", "port", "protocol")
	if err == nil {
		c.conn, err = convert(types, spec.Maps[name].Value, m.ValueSize(), "seen", "state", "side")
	}
	if err != nil {
		m.Close()
		return fmt.Errorf("flows of map %s cannot be read: %w", name, err)
	}
	c.seen = c.conn.From("seen")
	c.knowsBackend = c.conn.Copies("flags", "backend", "backend_port")
	o.flows = append(o.flows, c)
	return nil
}

// CarryFlows copies the flows of the older layout. Called again it copies those
// that had packets meanwhile. Flows that programs of ours have decided on stay as
// these left them, see policymap.MergeFlow. It returns the counts of all calls.
func (d *DataPath) CarryFlows() (Carried, error) {
	if d.older == nil {
		return Carried{}, nil
	}
	if d.sweep.clock == nil {
		if err := d.prepareSweep(); err != nil {
			return d.older.carried, err
		}
	}
	for i := range d.older.flows {
		c := &d.older.flows[i]
		now, err := jiffies(d.sweep.clock)
		if err != nil {
			return d.older.carried, fmt.Errorf("read the clock of flows: %w", err)
		}
		to := d.maps()[c.name]
		if err := c.each(func(key, value []byte) error { return d.carry(c, to, key, value, now) }); err != nil {
			return d.older.carried, fmt.Errorf("carry flows of map %s over: %w", c.name, err)
		}
		c.since = max(now, 1)
	}
	return d.older.carried, nil
}

// each calls f for every flow. Programs go on writing: one that comes or goes
// meanwhile may be left out.
func (c *carrier) each(f func(key, value []byte) error) error {
	list := func(size uint32, n int) reflect.Value {
		return reflect.MakeSlice(reflect.SliceOf(reflect.ArrayOf(int(size), reflect.TypeFor[byte]())), n, n)
	}
	var at ebpf.MapBatchCursor
	for size, done := sweepBatch, false; !done; {
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

// carry writes one flow, if it is alive and not known as it is.
func (d *DataPath) carry(c *carrier, to *ebpf.Map, key, value []byte, now uint32) error {
	if c.since != 0 && int32(binary.NativeEndian.Uint32(value[c.seen:])-c.since) < 0 {
		return nil
	}
	var conn bpfobj.PodConn
	if err := decode(c.conn.Convert(value), &conn); err != nil {
		return err
	}
	sum := &d.older.carried
	flow, known := policymap.CarryFlow(conn, c.knowsBackend)
	if !known {
		sum.Unknown++
		return nil
	}
	place := c.key.Convert(key)
	protocol, err := protocolOf(place)
	if err != nil {
		return err
	}
	if d.sweep.limits.expired(&flow, protocol, now) {
		sum.Expired++
		return nil
	}
	err = to.Update(place, &flow, ebpf.UpdateNoExist)
	if err == nil {
		sum.Alive++
	}
	if !errors.Is(err, ebpf.ErrKeyExist) {
		return err
	}
	var there bpfobj.PodConn
	if err := to.Lookup(place, &there); errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil // others needed its place
	} else if err != nil {
		return err
	}
	if merged, write := policymap.MergeFlow(flow, there); write {
		return to.Put(place, &merged)
	}
	return nil
}

// protocolOf reads the protocol of a key of conns4 or conns6.
func protocolOf(key []byte) (uint8, error) {
	var k4 bpfobj.PodConnKey4
	if len(key) == int(reflect.TypeOf(k4).Size()) {
		err := decode(key, &k4)
		return k4.Protocol, err
	}
	var k6 bpfobj.PodConnKey6
	err := decode(key, &k6)
	return k6.Protocol, err
}

// TakeLinks gives the links of the older layout on an interface the programs of
// ours, each by one atomic exchange, and makes them links of ours. Without such
// links there is nothing to do.
func (d *DataPath) TakeLinks(name string) error {
	if d.older == nil {
		return nil
	}
	for _, h := range d.hooks() {
		was := filepath.Join(d.older.dir, "links", name+h.suffix)
		if _, err := os.Lstat(was); errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return fmt.Errorf("look for the pinned link %s: %w", was, err)
		}
		if err := d.adoptLink(was, h.prog); err != nil {
			return err
		}
		// It is gone if its interface is.
		if err := os.Rename(was, d.pin(name, h)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("move the pinned link %s: %w", was, err)
		}
	}
	return nil
}

// DecideAlone is called when the programs of ours are on every interface. From
// now on every packet of a pod has to have a mark of ours, once the program
// for egress is hooked again.
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
	return was.close()
}

// Alone reports whether no program of an older layout is needed any more.
func (d *DataPath) Alone() bool { return d.older == nil || d.older.alone }

// RemoveOlder removes the older layout. Its directory loses its name first, so
// that a removal that is cut short is not taken for a layout in force.
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
	d.older = nil
	return errors.Join(err, d.dropDispatch(), os.RemoveAll(retired))
}
