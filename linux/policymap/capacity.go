// SPDX-License-Identifier: Apache-2.0

package policymap

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// Capacity is the number of entries that each map can hold.
type Capacity struct {
	Slots, Peers4, Peers6, Prefixes4, Prefixes6, Verdicts, Rows, Tables int
	// Causes and CauseBlocks bound the counters of causes, if less than the maps hold. 0 stands for the size of the
	// maps. What does not fit is not counted separately.
	Causes, CauseBlocks int
}

func (c Capacity) causes() uint32      { return bound(c.Causes, bpfobj.Causes) }
func (c Capacity) causeBlocks() uint32 { return bound(c.CauseBlocks, bpfobj.CauseBlocks) }

func bound(asked int, most uint32) uint32 {
	if asked <= 0 {
		return most
	}
	return min(uint32(asked), most)
}

// FullError reports that a State does not fit into a map. Nothing was changed.
type FullError struct {
	Map       string
	Need, Max int
}

// Error names the map, both numbers and the remedy.
func (e *FullError) Error() string {
	remedy := fmt.Sprintf("make it larger with --map-entries %s=%d", e.Map, e.Need)
	if CheckSize(e.Map, e.Need) != nil {
		remedy = "run fewer pods on this node"
	}
	return fmt.Sprintf("map %s is full: the pods and policies of this node need %d entries, it holds %d: %s", e.Map, e.Need, e.Max, remedy)
}

// Is reports whether fewer peer classes would need less of the map. The classes of peers have prefixes, and a verdict
// and perhaps a row in each table that distinguishes them.
func (e *FullError) Is(target error) bool {
	return target == dataplane.ErrTooManyPeers && slices.Contains([]string{"prefixes4", "prefixes6", "verdicts", "rows"}, e.Map)
}

// MaxEntries is the maximum size of a map.
const MaxEntries = 1 << 24

// Sizeable lists the maps whose size is configurable.
func Sizeable() []string {
	return []string{"conns4", "conns6", "peers4", "peers6", "prefixes4", "prefixes6", "rows", "tables", "verdicts"}
}

// CheckSize returns an error if a map cannot have this size.
func CheckSize(name string, entries int) error {
	if !slices.Contains(Sizeable(), name) {
		return fmt.Errorf("size of map %q: there is no such map, or its size is fixed: give one of %s", name, strings.Join(Sizeable(), ", "))
	}
	if least := int(RowAllow) + 2; entries < least || entries > MaxEntries {
		return fmt.Errorf("size of map %s: %d entries: give a number from %d to %d", name, entries, least, MaxEntries)
	}
	return nil
}

// Check returns a *FullError if the maps cannot hold the States of a plan. The plan runs in
// order from their current content, so Check also counts the entries that exist together during
// a step.
func (l *Layout) Check(steps []*model.State, now time.Time) error {
	if l.bound(steps).fits(l.capacity, l.freeRows(now)) == nil {
		return nil
	}
	return l.rehearse(steps, now)
}

// need is the number of entries of each map that exist at the same time.
type need struct {
	peers, prefixes        [2]int // by IP version
	tables, verdicts, rows int    // rows counts only new ones
}

func (n need) fits(c Capacity, freeRows int) error {
	for _, m := range []struct {
		name      string
		need, max int
	}{
		{"peers4", n.peers[0], c.Peers4}, {"peers6", n.peers[1], c.Peers6},
		{"prefixes4", n.prefixes[0], c.Prefixes4}, {"prefixes6", n.prefixes[1], c.Prefixes6},
		{"tables", n.tables, c.Tables}, {"verdicts", n.verdicts, c.Verdicts},
		{"rows", c.Rows + n.rows - freeRows, c.Rows},
	} {
		if m.need > m.max {
			return &FullError{Map: m.name, Need: m.need, Max: m.max}
		}
	}
	return nil
}

// freeRows counts the row numbers that may be used.
func (l *Layout) freeRows(now time.Time) int {
	free := l.capacity.Rows - int(l.nextRow)
	for _, f := range l.freed {
		if now.Sub(f.at) >= Grace {
			free++
		}
	}
	return free
}

// bound counts the entries as if every step only added its own and removed none. It is fast,
// and an upper bound.
func (l *Layout) bound(steps []*model.State) need {
	n := need{peers: l.peers, tables: len(l.tables), verdicts: l.verdicts + len(l.garbage)}
	for p := range l.Prefixes {
		n.prefixes[family(p.Addr())]++
	}
	rows := make(map[bpfobj.PodRow]bool)
	for _, to := range steps {
		for a := range to.Policy.Addresses.Changes(l.state.Policy.Addresses) {
			if _, is := to.Policy.Addresses.Get(a); !is {
				continue
			}
			if _, was := l.Peers[a]; !was {
				n.peers[family(a)]++
			}
		}
		for _, p := range to.Policy.Prefixes {
			if _, was := l.Prefixes[p.Prefix]; !was {
				n.prefixes[family(p.Prefix.Addr())]++
			}
		}
		l.boundTables(to, &n, rows)
	}
	n.rows = len(rows)
	return n
}

func (l *Layout) boundTables(to *model.State, n *need, rows map[bpfobj.PodRow]bool) {
	seen := make(map[*model.Row]bool)
	note := func(r *model.Row) {
		if _, uniform := r.Uniform(); !uniform && !seen[r] {
			if bits := encodeRow(r); l.rows[bits] == 0 {
				rows[bits] = true
			}
		}
		seen[r] = true
	}
	fresh := len(missing(l.state.Policy.PeerClasses, to.Policy.PeerClasses))
	for id, t := range to.Policy.Tables {
		number, known := l.tables[id]
		was := l.state.Policy.Tables[id]
		if !known {
			n.tables++
		}
		for _, d := range model.Directions {
			side := &t.Sides[d]
			def, uniform := side.Default.Uniform()
			listed := !uniform || known && uint32(def) != number>>d&1 // includes the default
			switch {
			case known && was != nil && was.Sides[d].Default == side.Default:
				if listed {
					n.verdicts += fresh
				}
				for c := range side.Rows.Changes(was.Sides[d].Rows) {
					note(side.Row(c))
					n.verdicts++
				}
				continue
			case listed:
				n.verdicts += len(to.Policy.PeerClasses)
			default:
				n.verdicts += side.Rows.Len()
			}
			note(side.Default)
			for _, r := range side.Rows.All() {
				note(r)
			}
		}
	}
}

// rehearse applies the steps to a copy and counts the entries exactly.
func (l *Layout) rehearse(steps []*model.State, now time.Time) error {
	c := l.clone()
	for _, to := range steps {
		free, before, known := c.freeRows(now), c.verdicts+len(c.garbage), len(c.tables)
		w := c.advance(to, now)
		n := need{tables: known + len(w.Tables), verdicts: before, rows: len(w.Rows)}
		for _, v := range w.Verdicts {
			if _, was := c.Verdicts[v.Table][v.Peer]; !was {
				n.verdicts++
			}
		}
		for a := range c.Peers {
			n.peers[family(a)]++
		}
		for p := range c.Prefixes {
			n.prefixes[family(p.Addr())]++
		}
		for _, p := range w.Peers {
			if _, was := c.Peers[p.Addr]; !was {
				n.peers[family(p.Addr)]++
			}
		}
		for _, p := range w.Prefixes {
			if _, was := c.Prefixes[p.Prefix]; !was {
				n.prefixes[family(p.Prefix.Addr())]++
			}
		}
		if err := n.fits(c.capacity, free); err != nil {
			return err
		}
		c.Entries.Execute(w)
		c.release(now)
	}
	return nil
}

// clone returns a copy that shares nothing that Advance changes.
func (l *Layout) clone() *Layout {
	c := *l
	c.Entries = l.Entries.Clone()
	c.slots, c.tables, c.rows, c.uses = maps.Clone(l.slots), maps.Clone(l.tables), maps.Clone(l.rows), maps.Clone(l.uses)
	c.causes, c.places = l.causes.clone(), maps.Clone(l.places)
	c.pending, c.garbage, c.freed = slices.Clone(l.pending), slices.Clone(l.garbage), slices.Clone(l.freed)
	return &c
}

// Usage is the number of used entries of a map, and its size.
type Usage struct{ Entries, Capacity int }

// Usage counts the entries of the policy maps, by map.
func (l *Layout) Usage() map[string]Usage {
	var prefixes [2]int
	for p := range l.Prefixes {
		prefixes[family(p.Addr())]++
	}
	c := l.capacity
	return map[string]Usage{
		"slots": {len(l.slots), c.Slots}, "tables": {len(l.tables), c.Tables}, "verdicts": {l.verdicts, c.Verdicts},
		"rows": {len(l.rows), c.Rows - int(RowAllow) - 1}, "peers4": {l.peers[0], c.Peers4}, "peers6": {l.peers[1], c.Peers6},
		"prefixes4": {prefixes[0], c.Prefixes4}, "prefixes6": {prefixes[1], c.Prefixes6},
	}
}
