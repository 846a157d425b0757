// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/flowtable"
	"github.com/isthmus-net/isthmus/linux/mapview"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// Read returns the content of the policy maps. Of the map rows it returns only those that
// verdicts refer to.
func (d *DataPath) Read() (*policymap.Entries, error) { return d.read(nil) }

// read also returns the rows that wanted entries refer to.
func (d *DataPath) read(wanted *policymap.Entries) (*policymap.Entries, error) {
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
	return e, d.readRows(e, wanted)
}

func (d *DataPath) readSlots(e *policymap.Entries) error {
	buf := make([]byte, d.objects.Slots.MaxEntries()*8)
	if _, err := d.slots.ReadAt(buf, 0); err != nil {
		return fmt.Errorf("read slots: %w", err)
	}
	for i := range d.objects.Slots.MaxEntries() {
		s := bpfobj.PodSlot{Table: binary.NativeEndian.Uint32(buf[i*8:]), Epoch: binary.NativeEndian.Uint32(buf[i*8+4:])}
		if s != (bpfobj.PodSlot{}) {
			e.Slots[i] = s
		}
	}
	return nil
}

func (d *DataPath) readAddresses(e *policymap.Entries) error {
	o := &d.objects
	return errors.Join(
		ReadMap(o.Peers4, func(k bpfobj.PodAddr4, v bpfobj.PodPeerClass) { notePeer(e, netip.AddrFrom4(k.Addr), v.Class) }),
		ReadMap(o.Peers6, func(k bpfobj.PodAddr6, v bpfobj.PodPeerClass) { notePeer(e, netip.AddrFrom16(k.Addr), v.Class) }),
		ReadMap(o.Prefixes4, func(k bpfobj.PodPrefix4, v bpfobj.PodPeerClass) { e.Prefixes[prefix4(k)] = v.Class }),
		ReadMap(o.Prefixes6, func(k bpfobj.PodPrefix6, v bpfobj.PodPeerClass) { e.Prefixes[prefix6(k)] = v.Class }))
}

// prefix4 decodes the key of a trie. The kernel stores bits after the prefix, which have no
// meaning.
func prefix4(k bpfobj.PodPrefix4) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4(k.Addr), int(k.Bits)).Masked()
}

func prefix6(k bpfobj.PodPrefix6) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16(k.Addr), int(k.Bits)).Masked()
}

func notePeer(e *policymap.Entries, a netip.Addr, class uint32) {
	e.Peers[a] = class &^ bpfobj.PeerPod
	if class&bpfobj.PeerPod != 0 {
		e.Pods[a] = true
	}
}

func (d *DataPath) readTables(e *policymap.Entries) error {
	o := &d.objects
	return errors.Join(
		ReadMap(o.Tables, func(k bpfobj.PodTableNumber, v bpfobj.PodTableId) { e.Tables[k.Table] = model.TableID(v.Id) }),
		ReadMap(o.Verdicts, func(k bpfobj.PodVerdictKey, v bpfobj.PodVerdictRow) {
			if e.Verdicts[k.Table] == nil {
				e.Verdicts[k.Table] = make(map[uint32]policymap.VerdictRow)
			}
			e.Verdicts[k.Table][k.Peer] = v
		}),
		d.readCauses(e))
}

// readRows reads the rows that present or wanted verdicts refer to. A row that is not in the
// map denies.
func (d *DataPath) readRows(e, wanted *policymap.Entries) error {
	var failed error
	lookup := func(n uint32) (r policymap.Row, ok bool) {
		err := d.objects.Rows.Lookup(n, &r)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			failed = fmt.Errorf("read row %d: %w", n, err)
		}
		return r, err == nil
	}
	e.Rows = policymap.UsedRows(e.Verdicts, lookup)
	if wanted != nil {
		for n := range wanted.Rows {
			if _, has := e.Rows[n]; has {
				continue
			}
			if r, ok := lookup(n); ok {
				e.Rows[n] = r
			}
		}
	}
	return failed
}

// ReadMap calls f for every entry of a map that only the agent writes.
func ReadMap[K, V any](m *ebpf.Map, f func(K, V)) error {
	n := min(batchSize, int(m.MaxEntries()))
	keys, values := make([]K, n), make([]V, n)
	var at ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&at, keys, values, nil)
		if errors.Is(err, ebpf.ErrNotSupported) {
			return eachAlone(m, f)
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("read map %s: %w", m, err)
		}
		for i := range n {
			f(keys[i], values[i])
		}
		if err != nil { // the last batch
			return nil
		}
	}
}

// eachAlone reads the entries one by one. Some maps have no batch reads in Linux 6.1, and maps
// that programs write meanwhile need it, too.
func eachAlone[K, V any](m *ebpf.Map, f func(K, V)) error {
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

// ReadPinned reads the maps that an agent pinned in a directory, also while no agent runs. It changes nothing. With
// flows, it also reads the flow tables: flows that begin or end meanwhile may be missing.
func ReadPinned(dir string, flows bool) (*mapview.Maps, error) {
	var d DataPath
	o := &d.objects.PodMaps
	defer o.Close()
	for name, at := range map[string]**ebpf.Map{"slots": &o.Slots, "generation": &o.Generation, "ports": &o.Ports, "rows": &o.Rows, "tables": &o.Tables,
		"verdicts": &o.Verdicts, "endpoints": &o.Endpoints, "locals4": &o.Locals4, "locals6": &o.Locals6, "peers4": &o.Peers4, "peers6": &o.Peers6,
		"prefixes4": &o.Prefixes4, "prefixes6": &o.Prefixes6, "conns4": &o.Conns4, "conns6": &o.Conns6,
		"causes": &o.Causes, "cause_blocks": &o.CauseBlocks, "table_causes": &o.TableCauses, "cause_counts": &o.CauseCounts} {
		var err error
		if *at, err = ebpf.LoadPinnedMap(filepath.Join(dir, name), &ebpf.LoadPinOptions{ReadOnly: true}); err != nil {
			return nil, fmt.Errorf("open map %s: %w", name, err)
		}
	}
	for tries := 3; ; tries-- {
		m, err := d.readView()
		if err != nil {
			return nil, err
		}
		if m.Moving && tries > 1 {
			continue
		}
		if flows {
			m.Conns, err = d.readConns()
		}
		return m, err
	}
}

// readView reads the maps that only the agent writes. A step of a change that began meanwhile makes the view moving.
func (d *DataPath) readView() (*mapview.Maps, error) {
	m := &mapview.Maps{Entries: policymap.NewEntries(), Locals: make(map[netip.Addr]uint32)}
	o := &d.objects.PodMaps
	var before, after bpfobj.PodGeneration
	err := errors.Join(
		o.Generation.Lookup(uint32(0), &before),
		// Beside another CNI plugin, locals4 and locals6 hold further addresses only.
		ReadMap(o.Endpoints, func(_ bpfobj.PodIfindex, e bpfobj.PodEndpoint) {
			for _, ip := range addresses(e) {
				m.Locals[ip] = e.Slot
			}
		}),
		ReadMap(o.Slots, func(n uint32, s bpfobj.PodSlot) {
			if s != (bpfobj.PodSlot{}) {
				m.Slots[n] = s
			}
		}),
		ReadMap(o.Ports, func(n uint32, c bpfobj.PodPortClass) {
			if n < policymap.Ports {
				m.Ports[n] = c.Class
			}
		}),
		ReadMap(o.Locals4, func(k bpfobj.PodAddr4, s bpfobj.PodSlotIndex) { m.Locals[netip.AddrFrom4(k.Addr)] = s.Slot }),
		ReadMap(o.Locals6, func(k bpfobj.PodAddr6, s bpfobj.PodSlotIndex) { m.Locals[netip.AddrFrom16(k.Addr)] = s.Slot }),
		d.readAddresses(m.Entries),
		d.readTables(m.Entries))
	if err == nil {
		err = errors.Join(d.readRows(m.Entries, nil), o.Generation.Lookup(uint32(0), &after))
	}
	m.Moving = before != after
	return m, err
}

// readConns reads the flow tables. Flows that begin or end meanwhile may be missing.
func (d *DataPath) readConns() (all []mapview.Conn, err error) {
	note := func(a, b netip.Addr, ports [2]uint16, protocol uint8, c bpfobj.PodConn) error {
		ends := [2]netip.AddrPort{netip.AddrPortFrom(a, ports[0]), netip.AddrPortFrom(b, ports[1])}
		all = append(all, mapview.Conn{Ends: ends, Protocol: model.Protocol(protocol), Value: c})
		return nil
	}
	err = errors.Join(
		flowtable.Read4(d.objects.Conns4, func(_ uint32, e *bpfobj.PodConnEntry4) error {
			k := &e.Key
			return note(netip.AddrFrom4(k.Addr[0]), netip.AddrFrom4(k.Addr[1]), k.Port, k.Protocol, e.Conn)
		}),
		flowtable.Read6(d.objects.Conns6, func(_ uint32, e *bpfobj.PodConnEntry6) error {
			k := &e.Key
			return note(netip.AddrFrom16(k.Addr[0]), netip.AddrFrom16(k.Addr[1]), k.Port, k.Protocol, e.Conn)
		}))
	return all, err
}
