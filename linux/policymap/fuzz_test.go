// SPDX-License-Identifier: Apache-2.0

package policymap_test

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/policymap"
	"github.com/isthmus-net/isthmus/test/world"
)

// FuzzDecode damages the entries of a State as writes that were cut short, or
// somebody with bpftool, might: what Decode makes of them must never allow
// what the entries deny, and the next State must put everything right.
func FuzzDecode(f *testing.F) {
	for seed := range byte(24) {
		f.Add(seed, []byte{})
		f.Add(seed, []byte{0, seed, 3, 1, seed * 3, 9, 2, 0, 1, 3, seed, 7, 4, 1, 1, 5, seed, 2, 6, 0, 200, 7, 9, 9})
	}
	f.Fuzz(func(t *testing.T, seed byte, damage []byte) {
		if len(damage) > 300 {
			return
		}
		s := world.Random(uint64(seed), shapes[int(seed)%len(shapes)])
		k := newKernel()
		k.apply(t, compile(t, s, nil))
		slots := make(map[model.EndpointID]uint32)
		for id := range k.layout.State().Endpoints {
			slots[id], _ = k.layout.Slot(id)
		}
		for ; len(damage) >= 3; damage = damage[3:] {
			spoil(k.Entries, damage[0], damage[1], damage[2])
		}
		decoded(t, k, s, slots)
		next := world.Mutate(uint64(seed)+1, s, shapes[int(seed)%len(shapes)], 2)
		var previous *model.State
		if seed%2 == 1 {
			previous = k.layout.State() // as an agent does; else numbers start anew
		}
		state := compile(t, next, previous)
		k.apply(t, state)
		k.check(t, next, state)
		k.checkRows(t)
	})
}

// checkRows wants every row that a verdict refers to in the layout's notes: one
// that is missing there would be written over.
func (k *kernel) checkRows(t *testing.T) {
	t.Helper()
	for table, entries := range k.Verdicts {
		for peer, n := range entries {
			if noted, ok := k.layout.Rows[n]; n > policymap.RowAllow && (!ok || noted != k.Rows[n]) {
				t.Fatalf("table %d, peer %d: row %d is %v, noted %t as %v", table, peer, n, k.Rows[n], ok, noted)
			}
		}
	}
}

// spoil damages one entry; what and how tell which and to what.
func spoil(e *policymap.Entries, kind, what, how byte) {
	switch kind % 8 {
	case 0: // a slot names any table
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
	case 3: // a verdict names any row
		if n, ok := nth(e.Verdicts, what); ok {
			e.Verdicts[n][uint32(how)] = uint32(how) % 8
		}
	case 4: // rows of a table that is not there
		e.Verdicts[uint32(what)<<2|uint32(how)&3] = map[uint32]uint32{uint32(how): uint32(what) % 5}
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

// nth returns a key of a map, of which the number tells which.
func nth[V any](m map[uint32]V, n byte) (uint32, bool) {
	keys := slices.Sorted(maps.Keys(m))
	if len(keys) == 0 {
		return 0, false
	}
	return keys[int(n)%len(keys)], true
}

// decoded reads the entries as a new agent does, and makes the result the
// kernel's layout.
func decoded(t *testing.T, k *kernel, s *model.Snapshot, slots map[model.EndpointID]uint32) {
	t.Helper()
	found := k.Entries.Clone()
	used, err := policymap.UsedRows(found.Verdicts, func(n uint32) (policymap.Row, error) { return k.Entries.Rows[n], nil })
	if err != nil {
		t.Fatal(err)
	}
	found.Rows = used
	layout, _ := policymap.Decode(found, slots, roomy)
	state := layout.State()
	addrs, ports := world.Probes(s)
	for id, slot := range slots {
		for _, d := range model.Directions {
			for _, a := range addrs {
				for i, at := range ports {
					if i%5 != int(slot)%5 { // enough to find what is wrong, and quick
						continue
					}
					got := state.Decide(id, d, a, at.Protocol, at.Port).Verdict
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
