// SPDX-License-Identifier: Apache-2.0

package policymap

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// Difference is one entry of a policy map that differs from the wanted content.
type Difference struct {
	// Map is the name of the map, without the IP version.
	Map string
	// Detail names the entry, its current value and the wanted value.
	Detail string
}

// Comparison lists how the content of the policy maps differs from the wanted content.
type Comparison struct {
	// Differences are sorted.
	Differences []Difference
	// Writes turn the current content into the wanted one.
	Writes Writes
	// Parts is the number of damaged parts of a verdict: slots, classes of addresses, classes
	// of ports, verdicts, rows. With one part, each write gives a packet the verdict from
	// before the repair or the wanted one. With several, a verdict may combine a repaired entry
	// with a damaged one.
	Parts int
	// Epoch is the greatest epoch of a damaged slot: flows may have it.
	Epoch uint32
}

// Compare finds the entries in which is differs from want. It changes neither. Rows that want
// does not use are free and may hold anything.
func Compare(want, is *Entries) *Comparison {
	c := &Comparison{}
	for _, part := range []func(want, is *Entries){c.slots, c.addresses, c.ports, c.verdicts, c.rows} {
		before := len(c.Differences)
		part(want, is)
		if len(c.Differences) > before {
			c.Parts++
		}
	}
	c.tables(want, is)
	c.causes(want, is)
	slices.SortFunc(c.Differences, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Map, b.Map), cmp.Compare(a.Detail, b.Detail))
	})
	return c
}

func (c *Comparison) found(name, format string, args ...any) {
	c.Differences = append(c.Differences, Difference{name, fmt.Sprintf(format, args...)})
}

// differ calls changed for keys that are missing or have another value, and foreign for keys
// that should not exist.
func differ[K, V comparable](want, is map[K]V, changed func(k K, want, is V, there bool), foreign func(k K, is V)) {
	for k, w := range want {
		if v, there := is[k]; !there || v != w {
			changed(k, w, v, there)
		}
	}
	for k, v := range is {
		if _, wanted := want[k]; !wanted {
			foreign(k, v)
		}
	}
}

func (c *Comparison) slots(want, is *Entries) {
	write := func(n uint32, w, v bpfobj.PodSlot) {
		c.found("slots", "slot %d holds table %d and epoch %d, not %d and %d", n, v.Table, v.Epoch, w.Table, w.Epoch)
		c.Writes.Slots = append(c.Writes.Slots, SlotWrite{n, w})
		if v.Epoch < maxEpoch {
			c.Epoch = max(c.Epoch, v.Epoch)
		}
	}
	differ(want.Slots, is.Slots, func(n uint32, w, v bpfobj.PodSlot, _ bool) { write(n, w, v) },
		func(n uint32, v bpfobj.PodSlot) { write(n, bpfobj.PodSlot{}, v) })
}

func (c *Comparison) addresses(want, is *Entries) {
	w := &c.Writes
	for a, class := range want.Peers {
		if now, there := is.Peers[a]; !there || now != class || want.Pods[a] != is.Pods[a] {
			c.found("peers", "address %s: present %t, class %d, pod %t; want class %d, pod %t", a, there, now, is.Pods[a], class, want.Pods[a])
			w.Peers = append(w.Peers, PeerWrite{a, class, want.Pods[a]})
		}
	}
	for a, class := range is.Peers {
		if _, wanted := want.Peers[a]; !wanted {
			c.found("peers", "address %s has class %d and should have no entry", a, class)
			w.DropPeers = append(w.DropPeers, a)
		}
	}
	differ(want.Prefixes, is.Prefixes, func(p netip.Prefix, class, now uint32, there bool) {
		c.found("prefixes", "prefix %s: present %t, class %d, want %d", p, there, now, class)
		w.Prefixes = append(w.Prefixes, PrefixWrite{p, class})
	}, func(p netip.Prefix, class uint32) {
		c.found("prefixes", "prefix %s has class %d and should have no entry", p, class)
		w.DropPrefixes = append(w.DropPrefixes, p)
	})
	slices.SortFunc(w.Prefixes, func(a, b PrefixWrite) int { return shorter(b.Prefix, a.Prefix) })
	slices.SortFunc(w.DropPrefixes, shorter)
}

func (c *Comparison) ports(want, is *Entries) {
	if slices.Equal(want.Ports, is.Ports) {
		return
	}
	for i := range want.Ports {
		if want.Ports[i] != is.Ports[i] {
			c.found("ports", "entry %d has class %d, want %d", i, is.Ports[i], want.Ports[i])
			c.Writes.Ports = append(c.Writes.Ports, PortWrite{uint32(i), 1, want.Ports[i]})
		}
	}
}

func (c *Comparison) verdicts(want, is *Entries) {
	compare := func(table uint32) {
		differ(want.Verdicts[table], is.Verdicts[table], func(peer uint32, row, now VerdictRow, there bool) {
			c.found("verdicts", "table %d, class %d, %s: present %t, row %d with causes %d, want %d with causes %d", table, peer/2,
				model.Direction(peer%2), there, now.Row, now.Causes, row.Row, row.Causes)
			c.Writes.Verdicts = append(c.Writes.Verdicts, VerdictWrite{VerdictKey{table, peer}, row})
		}, func(peer uint32, row VerdictRow) {
			c.found("verdicts", "table %d, class %d, %s has row %d and should have no entry", table, peer/2, model.Direction(peer%2), row.Row)
			c.Writes.DropVerdicts = append(c.Writes.DropVerdicts, VerdictKey{table, peer})
		})
	}
	for table := range want.Verdicts {
		compare(table)
	}
	for table := range is.Verdicts {
		if _, wanted := want.Verdicts[table]; !wanted {
			compare(table)
		}
	}
}

func (c *Comparison) rows(want, is *Entries) {
	for n, bits := range want.Rows {
		if is.Rows[n] != bits {
			c.found("rows", "row %d does not hold the verdicts of its ports", n)
			c.Writes.Rows = append(c.Writes.Rows, RowWrite{n, bits})
		}
	}
}

// causes compares the maps by which flows are counted for their causes. No verdict depends on them.
func (c *Comparison) causes(want, is *Entries) {
	for place, w := range want.Defaults {
		if now := is.Defaults[place]; now != w {
			c.found("table_causes", "place %d holds causes %v of table %d, not %v of %d", place, now.Causes, now.Table, w.Causes, w.Table)
			c.Writes.Defaults = append(c.Writes.Defaults, w)
		}
	}
	for n, w := range want.Blocks {
		if now := is.Blocks[n]; now != w {
			c.found("cause_blocks", "block %d holds %v, not %v", n, now, w)
			c.Writes.Blocks = append(c.Writes.Blocks, BlockWrite{n, w})
		}
	}
	for n, w := range want.Causes {
		if now, there := is.Causes[n]; !there || now != w {
			c.found("causes", "number %d: present %t, want %s", n, there, DecodeCause(w).Cause)
			c.Writes.Causes = append(c.Writes.Causes, CauseWrite{n, w, false})
		}
	}
	for n := range is.Causes {
		if _, wanted := want.Causes[n]; !wanted {
			c.found("causes", "number %d should have no entry", n)
			c.Writes.DropCauses = append(c.Writes.DropCauses, n)
		}
	}
}

// tables compares the map tables, which programs do not read.
func (c *Comparison) tables(want, is *Entries) {
	differ(want.Tables, is.Tables, func(n uint32, id, _ model.TableID, there bool) {
		c.found("tables", "table %d: present %t, with another identity or none", n, there)
		c.Writes.Tables = append(c.Writes.Tables, TableWrite{n, id})
	}, func(n uint32, _ model.TableID) {
		c.found("tables", "table %d should have no entry", n)
		c.Writes.DropTables = append(c.Writes.DropTables, n)
	})
}

// Renew gives every slot of an endpoint a new epoch, greater than beyond. Flows that were
// decided by damaged entries are then decided again.
func (l *Layout) Renew(beyond uint32) (w []SlotWrite) {
	l.epoch = max(l.epoch, beyond)
	for _, n := range slices.Sorted(maps.Values(l.slots)) {
		s := bpfobj.PodSlot{Table: l.Slots[n].Table, Epoch: l.newEpoch()}
		l.Slots[n] = s
		w = append(w, SlotWrite{n, s})
	}
	return w
}
