// SPDX-License-Identifier: Apache-2.0

package policymap_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/linux/policymap"
	"github.com/isthmus-net/isthmus/test/world"
)

var roomy = policymap.Capacity{Slots: 64, Peers4: 1000, Peers6: 1000, Prefixes4: 1000, Prefixes6: 1000, Verdicts: 10000, Rows: 2000, Tables: 500}

// kernel executes writes as the kernel would, without the records of the layout.
type kernel struct {
	*policymap.Entries
	layout *policymap.Layout
	now    time.Time
}

func newKernel() *kernel {
	return &kernel{Entries: policymap.NewEntries(), layout: policymap.NewLayout(roomy), now: time.Unix(0, 0)}
}

func (k *kernel) apply(t *testing.T, s *model.State) {
	t.Helper()
	for id := range s.Policy.Endpoints {
		w, err := k.layout.AddSlot(id)
		if err != nil {
			t.Fatal(err)
		}
		k.Slots[w.Index] = w.Slot
	}
	for _, step := range dataplane.Plan(k.layout.State(), s) {
		k.now = k.now.Add(time.Second)
		w, err := k.layout.Advance(step, k.now)
		if err != nil {
			t.Fatal(err)
		}
		k.Entries.Execute(w)
	}
}

// restart discards everything except the maps.
func (k *kernel) restart(t *testing.T) {
	t.Helper()
	slots := map[model.EndpointID]uint32{}
	for id := range k.layout.State().Policy.Endpoints {
		slots[id], _ = k.layout.Slot(id)
	}
	found := k.Entries.Clone()
	found.Rows = policymap.UsedRows(found.Verdicts, k.row)
	layout, problems := policymap.Decode(found, slots, roomy)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	k.layout = layout
}

// row reads the map rows, which is an array.
func (k *kernel) row(n uint32) (policymap.Row, bool) { return k.Rows[n], int(n) < roomy.Rows }

func stateOf(t *testing.T, s *model.Snapshot, previous *model.State) *model.State {
	t.Helper()
	state, unsupported := compile.Once(compile.Input{Snapshot: s, Node: "node1", Endpoints: world.Endpoints(s, "node1"), Previous: previous})
	if len(unsupported) > 0 {
		t.Fatal(unsupported)
	}
	return state
}

func (k *kernel) check(t *testing.T, s *model.Snapshot, state *model.State) {
	t.Helper()
	addrs, ports := world.Probes(s)
	for id, e := range state.Policy.Endpoints {
		slot, _ := k.layout.Slot(id)
		for _, d := range model.Directions {
			for _, a := range addrs {
				if slices.Contains(e.IPs, a) {
					continue // never reaches the data path
				}
				for _, at := range ports {
					want := state.Policy.Decide(id, d, a, at.Protocol, at.Port).Verdict
					if got := k.Lookup(slot, d, a, at.Protocol, at.Port); got != want {
						t.Fatalf("%s %s %s %s/%d: entries say %s, the state %s", id, d, a, at.Protocol, at.Port, got, want)
					}
					k.checkCause(t, k.Cause(k.VerdictRow(slot, d, k.Class(a)), d, at.Protocol, at.Port), state.Policy.Decide(id, d, a, at.Protocol, at.Port))
				}
			}
		}
	}
}

// checkCause requires that a number which counts a flow stands for the cause of its decision.
func (k *kernel) checkCause(t *testing.T, n uint32, want model.Decision) {
	t.Helper()
	got := policymap.FixedCause(n)
	if e, ok := k.Causes[n]; ok {
		got = policymap.DecodeCause(e)
	}
	if got.Cause == nil || got.Verdict != want.Verdict || *got.Cause != *want.Cause {
		t.Fatalf("counted by number %d, %s, want %s", n, got, want)
	}
}

// checkNotes compares the records of the layout with the maps. The map rows is an array, so
// unused rows stay in it.
func (k *kernel) checkNotes(t *testing.T) {
	t.Helper()
	if !slices.Equal(k.Ports, k.layout.Ports) {
		t.Fatal("the layout's notes of ports differ from the map")
	}
	maps := *k.Entries
	maps.Rows = policymap.UsedRows(k.Verdicts, k.row)
	if diff := cmp.Diff(&maps, k.layout.Entries, cmpopts.IgnoreFields(policymap.Entries{}, "Ports")); diff != "" {
		t.Fatalf("the layout's notes differ from the maps:\n%s", diff)
	}
}

var shapes = []world.Shape{
	{Pods: 6, Policies: 4}, {Pods: 8, Policies: 6, IPv6: true}, {Pods: 8, Policies: 8, Tiers: true}, {Pods: 8, Policies: 4, Nodes: 1},
}

// Through any sequence of changes with restarts, the entries encode the State, and the records
// of the layout match the maps.
func TestEntriesFollowTheState(t *testing.T) {
	for i, shape := range shapes {
		for seed := range uint64(6) {
			t.Run(fmt.Sprintf("shape%d/%d", i, seed), func(t *testing.T) {
				k := newKernel()
				s := world.Random(seed, shape)
				var previous *model.State
				for round := range uint64(8) {
					state := stateOf(t, s, previous)
					k.apply(t, state)
					k.check(t, s, state)
					k.checkNotes(t)
					previous = state
					if seed%3 == 1 && round%3 == 2 {
						k.restart(t)
						previous = k.layout.State()
					}
					s = world.Mutate(seed*100+round, s, shape, 1+int(seed+round)%3)
				}
			})
		}
	}
}

// A State that is applied again needs no write, also after a restart.
func TestNothingToDo(t *testing.T) {
	for seed := range uint64(20) {
		k := newKernel()
		s := world.Random(seed, shapes[1])
		k.apply(t, stateOf(t, s, nil))
		again := stateOf(t, s, k.layout.State())
		for _, step := range dataplane.Plan(k.layout.State(), again) {
			w, err := k.layout.Advance(step, k.now)
			if err != nil {
				t.Fatal(err)
			}
			if w.Count() != 0 {
				t.Fatalf("seed %d: %d writes for the same state: %+v", seed, w.Count(), w)
			}
		}
	}
}

// A State that does not fit is rejected before anything is written.
func TestFull(t *testing.T) {
	s := world.Random(3, shapes[2])
	state := stateOf(t, s, nil)
	for name, c := range map[string]policymap.Capacity{
		"peers4": {Slots: 64, Peers4: 2, Prefixes4: 1000, Verdicts: 10000, Rows: 2000, Tables: 500},
		"rows":   {Slots: 64, Peers4: 1000, Prefixes4: 1000, Verdicts: 10000, Rows: 3, Tables: 500},
		"tables": {Slots: 64, Peers4: 1000, Prefixes4: 1000, Verdicts: 10000, Rows: 2000, Tables: 0},
	} {
		l := policymap.NewLayout(c)
		before := l.Entries.Clone()
		_, err := l.Advance(state, time.Unix(0, 0))
		full, ok := err.(*policymap.FullError)
		if !ok || full.Map != name {
			t.Errorf("%s: got %v", name, err)
		}
		if diff := cmp.Diff(before, l.Entries); diff != "" {
			t.Errorf("%s: entries changed:\n%s", name, diff)
		}
	}
}

// Removing every policy and endpoint leaves no row and no table.
func TestNothingIsLeft(t *testing.T) {
	s := world.Random(5, shapes[3])
	k := newKernel()
	state := stateOf(t, s, nil)
	k.apply(t, state)
	for id := range maps.Clone(state.Policy.Endpoints) {
		k.layout.DropSlot(id)
	}
	empty, _ := compile.Once(compile.Input{Snapshot: model.MakeSnapshot(nil, nil, nil, nil), Node: "node1", Previous: state})
	for _, step := range dataplane.Plan(k.layout.State(), empty) {
		w, err := k.layout.Advance(step, k.now)
		if err != nil {
			t.Fatal(err)
		}
		k.Entries.Execute(w)
	}
	if n := len(k.Verdicts) + len(k.Tables) + len(k.Peers) + len(k.Prefixes) + len(k.layout.Rows); n != 0 {
		t.Errorf("%d entries are left: verdicts %v tables %v peers %v prefixes %v rows %v", n, k.Verdicts, k.Tables, k.Peers, k.Prefixes, k.layout.Rows)
	}
}

// Slots of another layout are kept, with table DenyAll, and given to no other endpoint.
func TestKeepSlot(t *testing.T) {
	l := policymap.NewLayout(policymap.Capacity{Slots: 4})
	kept, err := l.KeepSlot("a", 1)
	if err != nil || kept.Index != 1 || kept.Slot.Table != policymap.DenyAll || kept.Slot.Epoch <= policymap.MigratedEpoch {
		t.Fatalf("kept %+v, %v", kept, err)
	}
	if w, err := l.AddSlot("a"); err != nil || w != kept {
		t.Errorf("asked again: %+v, %v, want %+v", w, err, kept)
	}
	if w, err := l.KeepSlot("b", 1); err == nil {
		t.Errorf("a second endpoint got %+v", w)
	}
	var full *policymap.FullError
	if w, err := l.KeepSlot("b", 4); !errors.As(err, &full) {
		t.Errorf("beyond the map: %+v, %v", w, err)
	}
	for _, id := range []model.EndpointID{"b", "c"} {
		if w, err := l.AddSlot(id); err != nil || w.Index == 1 || w.Slot.Epoch <= kept.Slot.Epoch {
			t.Errorf("%s got %+v, %v", id, w, err)
		}
	}
}
