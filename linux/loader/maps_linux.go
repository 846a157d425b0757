// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// Execute makes the writes in order. After an error some of them are made; the
// maps are then to be read anew.
func (d *DataPath) Execute(w *policymap.Writes) error {
	o := &d.objects
	for _, r := range w.Rows {
		if err := o.Rows.Put(r.Index, r.Row); err != nil {
			return fmt.Errorf("write row %d: %w", r.Index, err)
		}
	}
	for _, t := range w.Tables {
		if err := o.Tables.Put(bpfobj.PodTableNumber{Table: t.Number}, bpfobj.PodTableId{Id: t.ID}); err != nil {
			return fmt.Errorf("write table %d: %w", t.Number, err)
		}
	}
	for _, v := range w.Verdicts {
		key := bpfobj.PodVerdictKey{Table: v.Table, Peer: v.Peer}
		if err := o.Verdicts.Put(key, bpfobj.PodVerdictRow{Row: v.Row}); err != nil {
			return fmt.Errorf("write verdicts of table %d: %w", v.Table, err)
		}
	}
	if err := d.dropVerdicts(w.Unlist); err != nil {
		return err
	}
	if err := d.executeAddresses(w); err != nil {
		return err
	}
	if err := d.executePorts(w.Ports); err != nil {
		return err
	}
	for _, s := range w.Slots {
		if err := d.WriteSlot(s); err != nil {
			return err
		}
	}
	if err := d.dropVerdicts(w.DropVerdicts); err != nil {
		return err
	}
	for _, t := range w.DropTables {
		if err := drop(o.Tables, bpfobj.PodTableNumber{Table: t}); err != nil {
			return fmt.Errorf("remove table %d: %w", t, err)
		}
	}
	return nil
}

func (d *DataPath) executeAddresses(w *policymap.Writes) error {
	for _, p := range w.Peers {
		m, key := d.peerKey(p.Addr)
		class := p.Class
		if p.Pod {
			class |= bpfobj.PeerPod
		}
		if err := m.Put(key, bpfobj.PodPeerClass{Class: class}); err != nil {
			return fmt.Errorf("write class of %s: %w", p.Addr, err)
		}
	}
	for _, p := range w.Prefixes {
		m, key := d.prefixKey(p.Prefix)
		if err := m.Put(key, bpfobj.PodPeerClass{Class: p.Class}); err != nil {
			return fmt.Errorf("write class of %s: %w", p.Prefix, err)
		}
	}
	for _, p := range w.DropPrefixes {
		if err := drop(d.prefixKey(p)); err != nil {
			return fmt.Errorf("remove class of %s: %w", p, err)
		}
	}
	for _, a := range w.DropPeers {
		if err := drop(d.peerKey(a)); err != nil {
			return fmt.Errorf("remove class of %s: %w", a, err)
		}
	}
	return nil
}

// drop deletes an entry; one that is not there is no error.
func drop(m *ebpf.Map, key any) error {
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

func (d *DataPath) dropVerdicts(keys []policymap.VerdictKey) error {
	for _, k := range keys {
		if err := drop(d.objects.Verdicts, bpfobj.PodVerdictKey{Table: k.Table, Peer: k.Peer}); err != nil {
			return fmt.Errorf("remove verdicts of table %d: %w", k.Table, err)
		}
	}
	return nil
}

func (d *DataPath) peerKey(a netip.Addr) (*ebpf.Map, any) {
	if a.Is6() {
		return d.objects.Peers6, bpfobj.PodAddr6{Addr: a.As16()}
	}
	return d.objects.Peers4, bpfobj.PodAddr4{Addr: a.As4()}
}

func (d *DataPath) prefixKey(p netip.Prefix) (*ebpf.Map, any) {
	if p.Addr().Is6() {
		return d.objects.Prefixes6, bpfobj.PodPrefix6{Bits: uint32(p.Bits()), Addr: p.Addr().As16()}
	}
	return d.objects.Prefixes4, bpfobj.PodPrefix4{Bits: uint32(p.Bits()), Addr: p.Addr().As4()}
}

// executePorts writes through shared memory: ranges of thousands of ports are
// common, and each entry is a word that programs read whole.
func (d *DataPath) executePorts(writes []policymap.PortWrite) error {
	const entry = 8 // array maps round their values up
	var buf [entry]byte
	for _, w := range writes {
		binary.NativeEndian.PutUint16(buf[:], w.Class)
		for i := range w.Count {
			if _, err := d.ports.WriteAt(buf[:2], int64(w.Index+i)*entry); err != nil {
				return fmt.Errorf("write class of port entry %d: %w", w.Index+i, err)
			}
		}
	}
	return nil
}

// WriteSlot sets table and epoch of a slot by one store of 64 bits.
func (d *DataPath) WriteSlot(s policymap.SlotWrite) error {
	var buf [8]byte
	binary.NativeEndian.PutUint32(buf[:4], s.Slot.Table)
	binary.NativeEndian.PutUint32(buf[4:], s.Slot.Epoch)
	if _, err := d.slots.WriteAt(buf[:], int64(s.Index)*8); err != nil {
		return fmt.Errorf("write slot %d: %w", s.Index, err)
	}
	return nil
}

// Read returns the content of the policy maps.
func (d *DataPath) Read() (*policymap.Entries, error) {
	e := policymap.NewEntries()
	if err := d.readSlots(e); err != nil {
		return nil, err
	}
	if err := d.readAddresses(e); err != nil {
		return nil, err
	}
	buf := make([]byte, policymap.Ports*8)
	if _, err := d.ports.ReadAt(buf, 0); err != nil {
		return nil, fmt.Errorf("read ports: %w", err)
	}
	for i := range e.Ports {
		e.Ports[i] = binary.NativeEndian.Uint16(buf[i*8:])
	}
	if err := d.readTables(e); err != nil {
		return nil, err
	}
	return e, nil
}

func (d *DataPath) readSlots(e *policymap.Entries) error {
	buf := make([]byte, d.objects.Slots.MaxEntries()*8)
	if _, err := d.slots.ReadAt(buf, 0); err != nil {
		return fmt.Errorf("read slots: %w", err)
	}
	for i := range d.objects.Slots.MaxEntries() {
		s := bpfobj.PodSlot{Table: binary.NativeEndian.Uint32(buf[i*8:]), Epoch: binary.NativeEndian.Uint32(buf[i*8+4:])}
		if s.Epoch != 0 {
			e.Slots[i] = s
		}
	}
	return nil
}

func (d *DataPath) readAddresses(e *policymap.Entries) error {
	o := &d.objects
	err := each(o.Peers4, func(k bpfobj.PodAddr4, v bpfobj.PodPeerClass) {
		e.Peers[netip.AddrFrom4(k.Addr)] = v.Class &^ bpfobj.PeerPod
	})
	err = errors.Join(err, each(o.Peers6, func(k bpfobj.PodAddr6, v bpfobj.PodPeerClass) {
		e.Peers[netip.AddrFrom16(k.Addr)] = v.Class &^ bpfobj.PeerPod
	}))
	err = errors.Join(err, each(o.Prefixes4, func(k bpfobj.PodPrefix4, v bpfobj.PodPeerClass) {
		e.Prefixes[netip.PrefixFrom(netip.AddrFrom4(k.Addr), int(k.Bits))] = v.Class
	}))
	return errors.Join(err, each(o.Prefixes6, func(k bpfobj.PodPrefix6, v bpfobj.PodPeerClass) {
		e.Prefixes[netip.PrefixFrom(netip.AddrFrom16(k.Addr), int(k.Bits))] = v.Class
	}))
}

func (d *DataPath) readTables(e *policymap.Entries) error {
	o := &d.objects
	err := each(o.Tables, func(k bpfobj.PodTableNumber, v bpfobj.PodTableId) { e.Tables[k.Table] = model.TableID(v.Id) })
	err = errors.Join(err, each(o.Verdicts, func(k bpfobj.PodVerdictKey, v bpfobj.PodVerdictRow) {
		if e.Verdicts[k.Table] == nil {
			e.Verdicts[k.Table] = make(map[uint32]uint32)
		}
		e.Verdicts[k.Table][k.Peer] = v.Row
	}))
	if err != nil {
		return err
	}
	e.Rows, err = policymap.UsedRows(e.Verdicts, func(n uint32) (r policymap.Row, err error) {
		err = o.Rows.Lookup(n, &r)
		return r, err
	})
	return err
}

// each calls f for every entry of a map.
func each[K, V any](m *ebpf.Map, f func(K, V)) error {
	var k K
	var v V
	it := m.Iterate()
	for it.Next(&k, &v) {
		f(k, v)
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("read map %s: %w", m, err)
	}
	return nil
}

// Counters returns the totals of packets over all CPUs, by counter.
func (d *DataPath) Counters() ([bpfobj.Counters]uint64, error) {
	var totals [bpfobj.Counters]uint64
	for id := range totals {
		var cpus []bpfobj.PodCounter
		if err := d.objects.PodMaps.Counters.Lookup(uint32(id), &cpus); err != nil {
			return totals, fmt.Errorf("read counter %d: %w", id, err)
		}
		for _, c := range cpus {
			totals[id] += c.Packets
		}
	}
	return totals, nil
}
