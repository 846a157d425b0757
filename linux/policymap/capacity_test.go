// SPDX-License-Identifier: Apache-2.0

package policymap_test

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/policymap"
	"github.com/isthmus-net/isthmus/test/world"
)

// slotted returns a layout with a slot for every endpoint, in order.
func slotted(t *testing.T, c policymap.Capacity, states ...*model.State) *policymap.Layout {
	t.Helper()
	l := policymap.NewLayout(c)
	for _, s := range states {
		for _, id := range slices.Sorted(maps.Keys(s.Policy.Endpoints)) {
			if _, err := l.AddSlot(id); err != nil {
				t.Fatal(err)
			}
		}
	}
	return l
}

// follow applies a State to a layout. It records the maximum number of entries of each map
// after every list of writes.
func follow(t *testing.T, l *policymap.Layout, to *model.State, at time.Time, most *policymap.Capacity) {
	t.Helper()
	for _, step := range dataplane.Plan(l.State(), to) {
		e := l.Entries.Clone()
		w, err := l.Advance(step, at)
		if err != nil {
			t.Fatal(err)
		}
		e.Execute(&policymap.Writes{Rows: w.Rows, Tables: w.Tables, Verdicts: w.Verdicts, Peers: w.Peers, Prefixes: w.Prefixes})
		verdicts := 0
		for _, rows := range e.Verdicts {
			verdicts += len(rows)
		}
		most.Verdicts, most.Tables = max(most.Verdicts, verdicts), max(most.Tables, len(e.Tables))
		for row := range e.Rows {
			most.Rows = max(most.Rows, int(row)+1)
		}
		var peers, prefixes [2]int
		for a := range e.Peers {
			peers[a.BitLen()/128]++
		}
		for p := range e.Prefixes {
			prefixes[p.Addr().BitLen()/128]++
		}
		most.Peers4, most.Peers6 = max(most.Peers4, peers[0]), max(most.Peers6, peers[1])
		most.Prefixes4, most.Prefixes6 = max(most.Prefixes4, prefixes[0]), max(most.Prefixes6, prefixes[1])
	}
}

// TestCheckIsExact changes from one State to another in maps that hold exactly the entries
// needed on the way, and in maps with one entry less.
func TestCheckIsExact(t *testing.T) {
	refused := make(map[string]int)
	for seed := range uint64(16) {
		s := world.Random(seed, shapes[seed%uint64(len(shapes))])
		from := stateOf(t, s, nil)
		to := stateOf(t, world.Mutate(seed, s, shapes[seed%uint64(len(shapes))], 5), from)
		most := policymap.Capacity{Rows: int(policymap.RowAllow) + 1}
		l := slotted(t, roomy, from, to)
		follow(t, l, from, time.Unix(0, 0), &most)
		most.Slots = roomy.Slots
		later := time.Unix(60, 0)
		before := most
		follow(t, l, to, later, &most)
		check := func(c policymap.Capacity) error {
			l := slotted(t, c, from, to)
			if _, err := l.Advance(from, time.Unix(0, 0)); err != nil {
				t.Fatalf("seed %d: %+v: %v", seed, c, err)
			}
			was := l.Entries.Clone()
			err := l.Check(dataplane.Plan(l.State(), to), later)
			if !reflect.DeepEqual(was, l.Entries) {
				t.Fatalf("seed %d: Check changed something", seed)
			}
			return err
		}
		if err := check(most); err != nil {
			t.Errorf("seed %d: maps that are just large enough: %v", seed, err)
		}
		for name, field := range map[string]func(*policymap.Capacity) *int{
			"verdicts": func(c *policymap.Capacity) *int { return &c.Verdicts }, "tables": func(c *policymap.Capacity) *int { return &c.Tables },
			"rows": func(c *policymap.Capacity) *int { return &c.Rows }, "peers4": func(c *policymap.Capacity) *int { return &c.Peers4 },
			"peers6": func(c *policymap.Capacity) *int { return &c.Peers6 }, "prefixes4": func(c *policymap.Capacity) *int { return &c.Prefixes4 },
			"prefixes6": func(c *policymap.Capacity) *int { return &c.Prefixes6 },
		} {
			tight := most
			if *field(&tight)--; *field(&tight) < *field(&before) {
				continue // the previous State needs them all
			}
			var full *policymap.FullError
			if err := check(tight); !errors.As(err, &full) || full.Map != name || full.Need != full.Max+1 {
				t.Errorf("seed %d: one entry of %s is missing: %v", seed, name, err)
			} else if errors.Is(err, dataplane.ErrTooManyPeers) == (name == "tables" || name == "peers4" || name == "peers6") {
				t.Errorf("seed %d: fewer classes of peers need less of %s: %t", seed, name, errors.Is(err, dataplane.ErrTooManyPeers))
			}
			refused[name]++
		}
	}
	for _, name := range []string{"verdicts", "tables", "rows", "peers4", "prefixes4"} {
		if refused[name] == 0 {
			t.Errorf("map %s was never the one that is full: %v", name, refused)
		}
	}
}

// TestStableNumbers lays out the same States twice.
func TestStableNumbers(t *testing.T) {
	for seed := range uint64(6) {
		s := world.Random(seed, shapes[1])
		from := stateOf(t, s, nil)
		to := stateOf(t, world.Mutate(seed, s, shapes[1], 5), from)
		var all []*policymap.Entries
		for range 2 {
			l := slotted(t, roomy, from, to)
			for i, state := range []*model.State{from, to, from} {
				follow(t, l, state, time.Unix(int64(60*i), 0), &policymap.Capacity{})
			}
			all = append(all, l.Entries)
		}
		for _, e := range all[1:] {
			if !reflect.DeepEqual(all[0], e) {
				t.Fatalf("seed %d: entries differ", seed)
			}
		}
	}
}
