// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// Execute makes the writes in order. After an error some of them are done; the caller must read
// the maps again.
func (d *DataPath) Execute(w *policymap.Writes) error {
	for _, step := range []struct {
		writes int
		make   func(*policymap.Writes) error
	}{
		{len(w.Causes) + len(w.Blocks), d.executeCauses},
		{len(w.Rows) + len(w.Tables) + len(w.Verdicts), d.executeTables},
		{len(w.Defaults), d.executeDefaults},
		{len(w.Unlist), func(w *policymap.Writes) error { return d.dropVerdicts(w.Unlist) }},
		{len(w.Peers) + len(w.Prefixes) + len(w.DropPrefixes) + len(w.DropPeers), d.executeAddresses},
		{len(w.Ports), func(w *policymap.Writes) error { return d.executePorts(w.Ports) }},
		{len(w.Slots), d.executeSlots},
		{len(w.DropVerdicts), func(w *policymap.Writes) error { return d.dropVerdicts(w.DropVerdicts) }},
		{len(w.DropTables), d.dropTables},
		{len(w.DropCauses), d.dropCauses},
	} {
		if step.writes == 0 {
			continue // a program that sees a new generation at every try gives up and denies
		}
		if err := d.beginGeneration(); err != nil {
			return err
		}
		if err := step.make(w); err != nil {
			return err
		}
	}
	return nil
}

// beginGeneration increments the generation of the maps. Programs then discard the verdict in
// progress, so no verdict combines entries from before this step and after the next one.
func (d *DataPath) beginGeneration() error {
	d.generation++
	var buf [4]byte
	binary.NativeEndian.PutUint32(buf[:], d.generation)
	if err := orderStores(); err != nil {
		return err
	}
	if _, err := d.generationAt.WriteAt(buf[:], 0); err != nil {
		return fmt.Errorf("increment the generation of the maps: %w", err)
	}
	return orderStores()
}

// Commands of membarrier(2).
const (
	membarrierPrivateExpedited         = 1 << 3
	membarrierRegisterPrivateExpedited = 1 << 4
)

// orderStores orders the stores to maps before it and after it, in shared memory and by system calls. Programs
// order their loads (bpf/include/order.h). x86-64 executes stores in order and needs nothing.
func orderStores() error {
	if runtime.GOARCH == "amd64" {
		return nil
	}
	return fullBarrier()
}

// fullBarrier is a full memory barrier on this processor, by the kernel: Go has none that every arm64 processor
// executes as one.
func fullBarrier() error {
	if err := errors.Join(registerBarrier(), membarrier(membarrierPrivateExpedited)); err != nil {
		return fmt.Errorf("order the writes to maps: %w; the kernel needs CONFIG_MEMBARRIER", err)
	}
	return nil
}

var registerBarrier = sync.OnceValue(func() error { return membarrier(membarrierRegisterPrivateExpedited) })

func membarrier(command uintptr) error {
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, command, 0, 0); errno != 0 {
		return fmt.Errorf("membarrier: %w", errno)
	}
	return nil
}

func (d *DataPath) executeSlots(w *policymap.Writes) error {
	for _, s := range w.Slots {
		if err := d.WriteSlot(s); err != nil {
			return err
		}
	}
	return nil
}

func (d *DataPath) dropTables(w *policymap.Writes) error {
	keys := make([]bpfobj.PodTableNumber, len(w.DropTables))
	for i, t := range w.DropTables {
		keys[i].Table = t
	}
	if e := dropAll(d, d.objects.Tables, keys); e != nil {
		return fmt.Errorf("remove table %d: %w", w.DropTables[e.at], e.err)
	}
	return nil
}

// executeTables writes rows, tables and verdicts, in this order.
func (d *DataPath) executeTables(w *policymap.Writes) error {
	o := &d.objects
	indices, rows := make([]uint32, len(w.Rows)), make([]bpfobj.PodRow, len(w.Rows))
	for i, r := range w.Rows {
		indices[i], rows[i] = r.Index, r.Row
	}
	if e := putAll(d, o.Rows, indices, rows); e != nil {
		return fmt.Errorf("write row %d: %w", indices[e.at], e.err)
	}
	numbers, ids := make([]bpfobj.PodTableNumber, len(w.Tables)), make([]bpfobj.PodTableId, len(w.Tables))
	for i, t := range w.Tables {
		numbers[i].Table, ids[i].Id = t.Number, t.ID
	}
	if e := putAll(d, o.Tables, numbers, ids); e != nil {
		return fmt.Errorf("write table %d: %w", numbers[e.at].Table, e.err)
	}
	keys, verdicts := make([]bpfobj.PodVerdictKey, len(w.Verdicts)), make([]bpfobj.PodVerdictRow, len(w.Verdicts))
	for i, v := range w.Verdicts {
		keys[i].Table, keys[i].Peer, verdicts[i] = v.Table, v.Peer, v.VerdictRow
	}
	if e := putAll(d, o.Verdicts, keys, verdicts); e != nil {
		return fmt.Errorf("write verdicts of table %d: %w", keys[e.at].Table, e.err)
	}
	return nil
}

// executeAddresses writes the classes of addresses. The order matters only within an IP
// version.
func (d *DataPath) executeAddresses(w *policymap.Writes) error {
	o := &d.objects
	err := executeFamily(d, w, false, o.Peers4, o.Prefixes4,
		func(a netip.Addr) bpfobj.PodAddr4 { return bpfobj.PodAddr4{Addr: a.As4()} },
		func(p netip.Prefix) bpfobj.PodPrefix4 {
			return bpfobj.PodPrefix4{Bits: uint32(p.Bits()), Addr: p.Addr().As4()}
		})
	if err != nil {
		return err
	}
	return executeFamily(d, w, true, o.Peers6, o.Prefixes6,
		func(a netip.Addr) bpfobj.PodAddr6 { return bpfobj.PodAddr6{Addr: a.As16()} },
		func(p netip.Prefix) bpfobj.PodPrefix6 {
			return bpfobj.PodPrefix6{Bits: uint32(p.Bits()), Addr: p.Addr().As16()}
		})
}

func executeFamily[A, P any](d *DataPath, w *policymap.Writes, v6 bool, peers, prefixes *ebpf.Map,
	address func(netip.Addr) A, prefix func(netip.Prefix) P) error {
	fail := func(verb string, of any, err error) error { return fmt.Errorf("%s class of %s: %w", verb, of, err) }
	var addrs []netip.Addr
	var set []netip.Prefix
	var classes, prefixClasses []bpfobj.PodPeerClass
	for _, p := range w.Peers {
		if p.Addr.Is6() == v6 {
			class := p.Class
			if p.Pod {
				class |= bpfobj.PeerPod
			}
			addrs, classes = append(addrs, p.Addr), append(classes, bpfobj.PodPeerClass{Class: class})
		}
	}
	for _, p := range w.Prefixes {
		if p.Prefix.Addr().Is6() == v6 {
			set, prefixClasses = append(set, p.Prefix), append(prefixClasses, bpfobj.PodPeerClass{Class: p.Class})
		}
	}
	dropped := slices.DeleteFunc(slices.Clone(w.DropPrefixes), func(p netip.Prefix) bool { return p.Addr().Is6() != v6 })
	gone := slices.DeleteFunc(slices.Clone(w.DropPeers), func(a netip.Addr) bool { return a.Is6() != v6 })
	if e := putAll(d, peers, keysOf(addrs, address), classes); e != nil {
		return fail("write", addrs[e.at], e.err)
	}
	// Programs search two maps for each address.
	if len(set)+len(dropped) > 0 {
		if err := d.beginGeneration(); err != nil {
			return err
		}
	}
	if e := putAll(d, prefixes, keysOf(set, prefix), prefixClasses); e != nil {
		return fail("write", set[e.at], e.err)
	}
	if e := dropAll(d, prefixes, keysOf(dropped, prefix)); e != nil {
		return fail("remove", dropped[e.at], e.err)
	}
	if len(gone) == 0 {
		return nil
	}
	if err := d.beginGeneration(); err != nil {
		return err
	}
	if e := dropAll(d, peers, keysOf(gone, address)); e != nil {
		return fail("remove", gone[e.at], e.err)
	}
	return nil
}

func keysOf[T, K any](list []T, key func(T) K) []K {
	keys := make([]K, len(list))
	for i, t := range list {
		keys[i] = key(t)
	}
	return keys
}

// drop deletes an entry. A missing entry is not an error.
func drop(m *ebpf.Map, key any) error {
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

func (d *DataPath) dropVerdicts(keys []policymap.VerdictKey) error {
	dropped := keysOf(keys, func(k policymap.VerdictKey) bpfobj.PodVerdictKey {
		return bpfobj.PodVerdictKey{Table: k.Table, Peer: k.Peer}
	})
	if e := dropAll(d, d.objects.Verdicts, dropped); e != nil {
		return fmt.Errorf("remove verdicts of table %d: %w", keys[e.at].Table, e.err)
	}
	return nil
}

// executePorts writes through shared memory. Ranges of thousands of ports are common, and
// programs read each entry as one word.
func (d *DataPath) executePorts(writes []policymap.PortWrite) error {
	const entry = 8 // the kernel rounds array values up to 8 bytes
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

// WriteSlot sets table and epoch of a slot by one 64-bit store.
func (d *DataPath) WriteSlot(s policymap.SlotWrite) error {
	var buf [8]byte
	binary.NativeEndian.PutUint32(buf[:4], s.Slot.Table)
	binary.NativeEndian.PutUint32(buf[4:], s.Slot.Epoch)
	if _, err := d.slots.WriteAt(buf[:], int64(s.Index)*8); err != nil {
		return fmt.Errorf("write slot %d: %w", s.Index, err)
	}
	d.useSlot(s.Index)
	return nil
}
