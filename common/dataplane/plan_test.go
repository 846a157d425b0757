// SPDX-License-Identifier: Apache-2.0

package dataplane_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/test/world"
)

// store is a data path reduced to its lookups: every field is written one entry at a time, and decide reads
// it as the kernel program does.
type store struct {
	slots     map[model.EndpointID]model.TableID
	rows      map[rowID]*model.Row
	defaults  map[tableSide]*model.Row
	addresses map[netip.Addr]model.PeerClass
	prefixes  map[netip.Prefix]model.PeerClass
	ports     map[world.Port]model.PortClass
}

type tableSide struct {
	table model.TableID
	d     model.Direction
}

type rowID struct {
	tableSide
	class model.PeerClass
}

func newStore(s *model.State, probes []world.Port) *store {
	st := &store{
		slots: map[model.EndpointID]model.TableID{}, rows: map[rowID]*model.Row{}, defaults: map[tableSide]*model.Row{},
		addresses: map[netip.Addr]model.PeerClass{}, prefixes: map[netip.Prefix]model.PeerClass{}, ports: map[world.Port]model.PortClass{},
	}
	for _, group := range st.writes(&model.State{}, s, probes) {
		for _, w := range group {
			w()
		}
	}
	return st
}

func (st *store) clone() *store {
	return &store{slots: maps.Clone(st.slots), rows: maps.Clone(st.rows), defaults: maps.Clone(st.defaults),
		addresses: maps.Clone(st.addresses), prefixes: maps.Clone(st.prefixes), ports: maps.Clone(st.ports)}
}

func (st *store) decide(id model.EndpointID, d model.Direction, remote netip.Addr, at world.Port) model.Verdict {
	return st.row(id, d, st.class(remote)).Cell(st.ports[at]).Verdict
}

// class looks up the class of an address as the kernel program does.
func (st *store) class(remote netip.Addr) model.PeerClass {
	if class, ok := st.addresses[remote]; ok {
		return class
	}
	best, class := -1, model.World
	for p, c := range st.prefixes {
		if p.Bits() > best && p.Contains(remote) {
			best, class = p.Bits(), c
		}
	}
	return class
}

// row returns the row of an endpoint and a class, by class of ports.
func (st *store) row(id model.EndpointID, d model.Direction, class model.PeerClass) *model.Row {
	side := tableSide{st.slots[id], d}
	if row, ok := st.rows[rowID{side, class}]; ok {
		return row
	}
	if row := st.defaults[side]; row != nil {
		return row
	}
	return &model.Row{} // denies
}

// writes lists the single writes from one State to the next, in groups whose order is fixed by the
// contract of Plan. Inside a group any order must be correct, except for prefixes.
func (st *store) writes(from, to *model.State, probes []world.Port) [][]func() {
	var adds, dels, ports, slots, collect []func()
	for a := range to.Policy.Addresses.Changes(from.Policy.Addresses) {
		if c, ok := to.Policy.Addresses.Get(a); ok {
			adds = append(adds, func() { st.addresses[a] = c })
		} else {
			dels = append(dels, func() { delete(st.addresses, a) })
		}
	}
	for _, at := range probes {
		if c := to.Policy.PortClass(at.Protocol, at.Port); c != from.Policy.PortClass(at.Protocol, at.Port) {
			ports = append(ports, func() { st.ports[at] = c })
		}
	}
	for id, e := range to.Policy.Endpoints {
		if from.Policy.Endpoints[id].Table != e.Table {
			slots = append(slots, func() { st.slots[id] = e.Table })
		}
	}
	for id := range from.Policy.Endpoints {
		if _, ok := to.Policy.Endpoints[id]; !ok {
			collect = append(collect, func() { delete(st.slots, id) })
		}
	}
	for key := range st.rows {
		if to.Policy.Tables[key.table] == nil {
			collect = append(collect, func() { delete(st.rows, key) })
		}
	}
	prefixAdds, prefixDels := st.prefixWrites(from, to)
	hidden, visible := st.tableWrites(to)
	groups := [][]func(){hidden, visible, adds}
	for _, w := range append(prefixAdds, prefixDels...) {
		groups = append(groups, []func(){w})
	}
	return append(groups, dels, ports, slots, collect)
}

// tableWrites writes one row at a time. The verdict of classes without a row is fixed by the first
// write. Rows that no lookup reaches, in tables without a slot or for classes without an address,
// are listed separately: their order has no effect.
func (st *store) tableWrites(to *model.State) (hidden, visible []func()) {
	tables := map[model.TableID]bool{}
	for _, id := range st.slots {
		tables[id] = true
	}
	classes := map[model.PeerClass]bool{model.World: true}
	for _, c := range st.addresses {
		classes[c] = true
	}
	for _, c := range st.prefixes {
		classes[c] = true
	}
	for id, t := range to.Policy.Tables {
		for _, d := range model.Directions {
			side := tableSide{id, d}
			def := st.defaults[side]
			if def == nil {
				if def = t.Sides[d].Default; !isUniform(def) {
					def = &model.Row{} // a data path has one verdict for unlisted classes
				}
				st.defaults[side] = def
			}
			for _, info := range to.Policy.PeerClasses {
				key := rowID{side, info.Class}
				if r := t.Sides[d].Row(info.Class); r != def || st.rows[key] != nil {
					write := func() { st.rows[key] = r }
					if tables[id] && classes[info.Class] && st.rows[key] != r {
						visible = append(visible, write)
					} else {
						hidden = append(hidden, write)
					}
				}
			}
		}
	}
	return hidden, visible
}

func isUniform(r *model.Row) bool { _, ok := r.Uniform(); return ok }

// prefixWrites adds the longest prefix first and removes the shortest first.
func (st *store) prefixWrites(from, to *model.State) (adds, dels []func()) {
	longest := func(a, b model.PrefixClass) int { return b.Prefix.Bits() - a.Prefix.Bits() }
	has := func(s *model.State, e model.PrefixClass, class bool) bool {
		return slices.ContainsFunc(s.Policy.Prefixes, func(o model.PrefixClass) bool {
			return o.Prefix == e.Prefix && (!class || o.Class == e.Class)
		})
	}
	for _, e := range slices.SortedFunc(slices.Values(to.Policy.Prefixes), longest) {
		if !has(from, e, true) {
			adds = append(adds, func() { st.prefixes[e.Prefix] = e.Class })
		}
	}
	for _, e := range slices.SortedFunc(slices.Values(from.Policy.Prefixes), longest) {
		if !has(to, e, false) {
			dels = append(dels, func() { delete(st.prefixes, e.Prefix) })
		}
	}
	slices.Reverse(dels)
	return adds, dels
}

func TestPlanNeverShowsAMixture(t *testing.T) {
	worlds, cells, writes := 8, 0, 0
	if testing.Short() {
		worlds = 2
	}
	for i, shape := range []world.Shape{{Pods: 5, Policies: 3}, {Pods: 6, Policies: 5, Tiers: true}, {Pods: 5, Policies: 4, Tiers: true, IPv6: true}, {Pods: 9, Policies: 3, Nodes: 1}} {
		for seed := range uint64(worlds) {
			t.Run(fmt.Sprintf("shape%d/%d", i, seed), func(t *testing.T) {
				a := world.Random(seed, shape)
				b := world.Mutate(seed, a, shape, 1+int(seed)%4)
				compiler := compile.New()
				old, _ := compiler.Compile(compile.Input{Snapshot: a, Node: "node1", Endpoints: world.Endpoints(a, "node1")})
				if seed%5 == 4 {
					compiler = compile.New() // as after a restart: no number is kept
				}
				next, _ := compiler.Compile(compile.Input{Snapshot: b, Node: "node1", Endpoints: world.Endpoints(b, "node1")})
				c, w := walk(t, seed, a, b, old, next)
				cells += c
				writes += w
			})
		}
	}
	t.Logf("cells=%d writes=%d", cells, writes)
}

// walk executes the plan write by write, in a random order where the contract leaves the order
// open. After each write it checks every cell of an endpoint that stays: it has its old or its new
// verdict, and never returns to the old one.
func walk(t *testing.T, seed uint64, a, b *model.Snapshot, old, next *model.State) (cells, writes int) {
	addrs, ports := world.Probes(a)
	more, morePorts := world.Probes(b)
	addrs = append(addrs, more...)
	ports = append(ports, morePorts...)
	type cell struct {
		id     model.EndpointID
		d      model.Direction
		remote netip.Addr
		at     world.Port
	}
	type fate struct {
		old, new model.Verdict
		changed  bool
	}
	fates := map[cell]*fate{}
	for id, e := range next.Policy.Endpoints {
		if _, ok := old.Policy.Endpoints[id]; !ok {
			continue
		}
		for _, d := range model.Directions {
			for _, remote := range addrs {
				if slices.Contains(e.IPs, remote) || slices.Contains(old.Policy.Endpoints[id].IPs, remote) {
					continue
				}
				for _, at := range ports {
					fates[cell{id, d, remote, at}] = &fate{
						old: old.Policy.Decide(id, d, remote, at.Protocol, at.Port).Verdict,
						new: next.Policy.Decide(id, d, remote, at.Protocol, at.Port).Verdict,
					}
				}
			}
		}
	}
	r := rand.New(rand.NewPCG(seed, 3))
	st := newStore(old, ports)
	was := old
	for step, to := range dataplane.Plan(old, next) {
		for g, group := range st.writes(was, to, ports) {
			r.Shuffle(len(group), func(i, j int) { group[i], group[j] = group[j], group[i] })
			for _, w := range group {
				w()
				writes++
				if writes%3 != 0 && len(fates) > 4000 { // most writes are checked, and all intermediate states are reached
					continue
				}
				for c, f := range fates {
					v := st.decide(c.id, c.d, c.remote, c.at)
					cells++
					if v == f.new && f.new != f.old {
						f.changed = true
					}
					if v != f.new && (v != f.old || f.changed) {
						t.Fatalf("step %d group %d: %s %s %s %s/%d is %s: before the change %s, after it %s, changed already: %t",
							step, g, c.id, c.d, c.remote, c.at.Protocol, c.at.Port, v, f.old, f.new, f.changed)
					}
				}
			}
		}
		was = to
	}
	for c, f := range fates {
		if v := st.decide(c.id, c.d, c.remote, c.at); v != f.new {
			t.Fatalf("at the end %s %s %s %s/%d is %s, want %s", c.id, c.d, c.remote, c.at.Protocol, c.at.Port, v, f.new)
		}
	}
	return cells, writes
}
