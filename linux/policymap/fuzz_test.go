// SPDX-License-Identifier: Apache-2.0

package policymap_test

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/policymap"
	"github.com/isthmus-net/isthmus/test/world"
)

// FuzzDecode damages the entries of a State, as interrupted writes or a user with bpftool
// might. The decoded State must never allow what the entries deny, and the next State must
// repair everything.
func FuzzDecode(f *testing.F) {
	for seed := range byte(24) {
		f.Add(seed, []byte{})
		f.Add(seed, []byte{0, seed, 3, 1, seed * 3, 9, 2, 0, 1, 3, seed, 7, 4, 1, 1, 5, seed, 2, 6, 0, 200, 7, 9, 9})
		for what := range byte(2) {
			f.Add(seed, []byte{8 + seed%16, what, 255, 8 + seed%16, what * 4, 1, 8 + (seed+1)%16, 31, 128 + what, 8 + (seed+2)%16, what, what})
		}
	}
	f.Fuzz(func(t *testing.T, seed byte, damage []byte) {
		if len(damage) > 300 {
			return
		}
		s := world.Random(uint64(seed), shapes[int(seed)%len(shapes)])
		k := newKernel()
		k.apply(t, stateOf(t, s, nil))
		slots := make(map[model.EndpointID]uint32)
		for id := range k.layout.State().Policy.Endpoints {
			slots[id], _ = k.layout.Slot(id)
		}
		for ; len(damage) >= 3; damage = damage[3:] {
			spoil(k.Entries, damage[0], damage[1], damage[2])
		}
		decoded(t, k, s, slots)
		next := world.Mutate(uint64(seed)+1, s, shapes[int(seed)%len(shapes)], 2)
		var previous *model.State
		if seed%2 == 1 {
			previous = k.layout.State() // as an agent does; otherwise numbers start again at zero
		}
		state := stateOf(t, next, previous)
		k.apply(t, state)
		k.check(t, next, state)
		k.checkRows(t)
		k.checkClean(t)
	})
}

// checkClean requires that the maps hold what a new layout would write for the State, marks of
// pods included. They must hold nothing that no packet can reach yet.
func (k *kernel) checkClean(t *testing.T) {
	t.Helper()
	for a := range k.Peers {
		if k.Pods[a] != policymap.IsPod(k.layout.State(), a) {
			t.Fatalf("address %s is marked as a pod's: %t", a, k.Pods[a])
		}
	}
	for table := range k.Verdicts {
		if _, ok := k.Tables[table]; !ok {
			t.Fatalf("verdicts of table %d, which is not there", table)
		}
	}
	numbers := make(map[model.TableID]uint32)
	for table, id := range k.Tables {
		if other, twice := numbers[id]; twice || table < 4 {
			t.Fatalf("table %d has the identity of table %d", table, other)
		}
		numbers[id] = table
	}
	for i, class := range k.Ports {
		if class >= model.MaxPortClasses {
			t.Fatalf("port entry %d has class %d", i, class)
		}
	}
	if c := policymap.Compare(k.layout.Entries, k.Entries); len(c.Differences) > 0 {
		t.Fatalf("the layout's notes differ from the maps: %v", c.Differences)
	}
}

// checkRows requires that the layout knows every row that a verdict refers to. It would
// overwrite an unknown one.
func (k *kernel) checkRows(t *testing.T) {
	t.Helper()
	for table, entries := range k.Verdicts {
		for peer, v := range entries {
			n := v.Row
			if noted, ok := k.layout.Rows[n]; n > policymap.RowAllow && (!ok || noted != k.Rows[n]) {
				t.Fatalf("table %d, peer %d: row %d is %v, noted %t as %v", table, peer, n, k.Rows[n], ok, noted)
			}
		}
	}
}

// spoil damages one entry; what and how select the entry and its new value.
func spoil(e *policymap.Entries, kind, what, how byte) {
	if kind%28 >= 8 {
		spoilWildly(e, kind%28, what, how)
		return
	}
	switch kind % 28 {
	case 0: // a slot refers to an arbitrary table
		if n, ok := nth(e.Slots, what); ok {
			s := e.Slots[n]
			s.Table = uint32(how)
			e.Slots[n] = s
		}
	case 1:
		if n, ok := nth(e.Tables, what); ok {
			delete(e.Tables, n)
		}
	case 2:
		if n, ok := nth(e.Rows, what); ok {
			delete(e.Rows, n)
		}
	case 3: // a verdict refers to an arbitrary row
		if n, ok := nth(e.Verdicts, what); ok {
			e.Verdicts[n][uint32(how)] = policymap.VerdictRow{Row: uint32(how) % 8}
		}
	case 4: // rows of a table that does not exist
		e.Verdicts[uint32(what)<<2|uint32(how)&3] = map[uint32]policymap.VerdictRow{uint32(how): {Row: uint32(what) % 5}}
	case 5:
		a := netip.AddrFrom4([4]byte{10, 0, what % 4, how})
		e.Peers[a] = uint32(how) % 40
	case 6:
		p, err := netip.AddrFrom4([4]byte{10, 0, what, 0}).Prefix(int(how) % 33)
		if err == nil {
			e.Prefixes[p] = uint32(what) % 40
		}
	case 7:
		e.Ports[int(what)*770] = uint16(how) % model.MaxPortClasses
	}
}

// wild returns a number of any size from two bytes.
func wild(what, how byte) uint32 { return uint32(int32(int8(how))) << (what % 32) }

// spoilWildly writes numbers that no agent writes.
func spoilWildly(e *policymap.Entries, kind, what, how byte) {
	n := wild(what, how)
	switch kind {
	case 8:
		if slot, ok := nth(e.Slots, what); ok {
			e.Slots[slot] = bpfobj.PodSlot{Table: n, Epoch: e.Slots[slot].Epoch}
		}
	case 9:
		if slot, ok := nth(e.Slots, what); ok {
			e.Slots[slot] = bpfobj.PodSlot{Table: e.Slots[slot].Table, Epoch: n}
		}
	case 10: // of no endpoint
		e.Slots[uint32(what)] = bpfobj.PodSlot{Table: n, Epoch: uint32(how)}
	case 11:
		e.Ports[int(what)*770] = uint16(n >> 8)
	case 12:
		e.Ports[len(e.Ports)-1-int(what)] = uint16(how) << 8
	case 13: // a row outside the map, or any
		if table, ok := nth(e.Verdicts, what); ok {
			e.Verdicts[table][uint32(how)] = policymap.VerdictRow{Row: n}
		}
	case 14: // any class
		if table, ok := nth(e.Verdicts, what); ok {
			e.Verdicts[table][n] = policymap.VerdictRow{Row: uint32(how) % 6}
		}
	case 15: // any table
		e.Verdicts[n] = map[uint32]policymap.VerdictRow{uint32(what): {Row: uint32(how) % 2}}
	case 16: // any number, with the identity of an existing table
		if table, ok := nth(e.Tables, what); ok {
			e.Tables[n] = e.Tables[table]
		}
	case 17:
		e.Tables[n] = model.TableID{what, how}
	case 18: // the identity of another table
		if table, ok := nth(e.Tables, what); ok {
			if other, ok := nth(e.Tables, how); ok {
				e.Tables[table] = e.Tables[other]
			}
		}
	case 19:
		a := netip.AddrFrom4([4]byte{10, 0, what % 4, how})
		e.Peers[a], e.Pods[a] = n&^bpfobj.PeerPod, how%2 == 0
	case 20: // a flag that belongs to another map
		e.Prefixes[netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, what, 0}), 24)] = n | bpfobj.PeerPod
	case 21:
		for a := range e.Peers {
			e.Pods[a] = !e.Pods[a]
		}
	case 22: // bits of unused classes
		if row, ok := nth(e.Rows, what); ok {
			bits := e.Rows[row]
			bits.Allow[how%16] ^= 1 << (what % 64)
			e.Rows[row] = bits
		}
	case 23:
		e.Prefixes[netip.PrefixFrom(netip.AddrFrom16([16]byte{0: what, 15: how}), int(how)%129).Masked()] = n
	default:
		spoilCauses(e, kind, what, how, n)
	}
}

// spoilCauses damages the maps by which flows are counted.
func spoilCauses(e *policymap.Entries, kind, what, how byte, n uint32) {
	switch kind {
	case 24: // any causes
		if table, ok := nth(e.Verdicts, what); ok {
			if peer, ok := nth(e.Verdicts[table], how); ok {
				e.Verdicts[table][peer] = policymap.VerdictRow{Row: e.Verdicts[table][peer].Row, Causes: n}
			}
		}
	case 25:
		if at, ok := nth(e.Blocks, what); ok {
			b := e.Blocks[at]
			b[how%8] = uint16(n)
			e.Blocks[at] = b
		}
	case 26: // the place of another table, or other causes
		if at, ok := nth(e.Defaults, what); ok {
			c := e.Defaults[at]
			c.Table, c.Causes[how%2] = c.Table+uint32(how%3), n
			e.Defaults[at] = c
		}
	case 27:
		if at, ok := nth(e.Causes, what); ok {
			if other, ok := nth(e.Causes, how); ok && how%2 == 0 {
				e.Causes[at] = e.Causes[other]
			} else {
				delete(e.Causes, at)
			}
		}
		e.Causes[n] = policymap.Cause{Meaning: uint64(how)}
	}
}

// nth returns a key of a map, selected by a number.
func nth[V any](m map[uint32]V, n byte) (uint32, bool) {
	keys := slices.Sorted(maps.Keys(m))
	if len(keys) == 0 {
		return 0, false
	}
	return keys[int(n)%len(keys)], true
}

// decoded reads the entries as a new agent does, and makes the result the kernel's layout.
func decoded(t *testing.T, k *kernel, s *model.Snapshot, slots map[model.EndpointID]uint32) {
	t.Helper()
	found := k.Entries.Clone()
	found.Rows = policymap.UsedRows(found.Verdicts, k.row)
	layout, _ := policymap.Decode(found, slots, roomy)
	state := layout.State()
	addrs, ports := world.Probes(s)
	for id, slot := range slots {
		for _, d := range model.Directions {
			for _, a := range addrs {
				for i, at := range ports {
					if i%5 != int(slot)%5 { // a fast sample that is enough to find errors
						continue
					}
					got := state.Policy.Decide(id, d, a, at.Protocol, at.Port).Verdict
					if is := k.Lookup(slot, d, a, at.Protocol, at.Port); got == model.Allow && is == model.Deny {
						t.Fatalf("%s %s %s %s/%d: decoded as %s, the entries say %s", id, d, a, at.Protocol, at.Port, got, is)
					}
				}
			}
		}
	}
	k.layout = layout
	k.now = k.now.Add(time.Minute)
}
