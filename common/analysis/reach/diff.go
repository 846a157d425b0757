// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"encoding/binary"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// Change is all flows from some groups to some groups on some ports whose verdict differs
// between two versions, except those of a pod to itself.
type Change struct {
	From, To []*Group
	Ports    PortsID
	Was, Is  model.Verdict
	// By are the ends whose decision differs, egress of From first.
	By []Side
}

// Side is one end of a Change.
type Side struct {
	Direction model.Direction
	// OS is the operating system that enforces it in the second version.
	OS model.OS
}

// Changes lists every flow that two versions decide differently, once, and no other. It joins
// groups that change in the same way, first by destination and then by source. The changes are
// in the order of their sources.
func (p *Partition) Changes() []Change {
	d := &differ{Partition: p, known: make(map[[4]PortsID][]delta), byTargets: make(map[string]*Change)}
	for _, f := range p.families {
		d.total += len(f.pairs) + len(f.groups)
	}
	for _, f := range p.families {
		d.addFamily(f)
	}
	return d.changes()
}

// delta is the ports on which a verdict changes in one way.
type delta struct {
	ports PortsID
	was   model.Verdict
	sides [2]bool // by direction: whether its decision differs
}

type differ struct {
	*Partition
	// known are the deltas by egress and ingress verdicts of both versions.
	known map[[4]PortsID][]delta
	// byTargets are the changes so far, by kind and destinations; order has their keys.
	byTargets map[string]*Change
	order     []string
	// done and total count pairs of sides and groups.
	done, total int
}

// kind is the part that joined changes have in common.
type kind struct {
	delta
	os [2]model.OS
}

// step records that one more pair, or group, is done.
func (d *differ) step() {
	d.done++
	d.progress(d.done, d.total)
}

// addFamily adds the changes of one address family.
func (d *differ) addFamily(f *family) {
	c := f.newCutter()
	d.findDiffering(f, c)
	for first := 0; first < len(f.groups); first += d.block {
		block := f.groups[first:min(first+d.block, len(f.groups))]
		candidates := f.candidates(block)
		ingress := f.admitted(c, first, candidates)
		for i, g := range block {
			if !candidates[i].empty() {
				d.source(c, g, candidates[i], ingress[i])
			}
			d.step()
		}
	}
}

// findDiffering finds for every pair of sides the groups that the versions decide
// differently. Versions with the same rules can differ only for groups that moved.
func (d *differ) findDiffering(f *family, c *cutter) {
	for _, p := range f.pairs {
		groups := f.all
		if p.same {
			groups = f.moved
		}
		p.differ = newSet(len(f.groups))
		for g, v := range c.cut(p, groups) {
			if v[0] != v[1] {
				p.differ.add(g)
			}
		}
		d.step()
	}
}

// candidates returns, for each source of a block, the destinations for which the verdict of
// an end differs.
func (f *family) candidates(block []*Group) []set {
	all := make([]set, len(block))
	sources := newSet(len(f.groups))
	for i, g := range block {
		sources.add(g.id)
		all[i] = newSet(len(f.groups))
		if p := g.sides[model.Egress]; p != nil {
			all[i].union(p.differ)
		}
	}
	first := block[0].id
	for _, to := range f.groups {
		if p := to.sides[model.Ingress]; p != nil {
			for g := range p.differ.both(sources) {
				all[g-first].add(to.id)
			}
		}
	}
	for _, m := range f.movers(block) {
		all[m.node.id-first].add(m.to.id)
	}
	return all
}

// admitted returns, for each source of a block that begins with the group first, the ports
// that its candidates admit, in order.
func (f *family) admitted(c *cutter, first int, candidates []set) [][]verdicts {
	any := newSet(len(f.groups))
	for _, s := range candidates {
		any.union(s)
	}
	all := make([][]verdicts, len(candidates))
	asked := newSet(len(f.groups))
	for to := range any.all() {
		clear(asked)
		for i, s := range candidates {
			if s.has(to) {
				asked.add(first + i)
			}
		}
		for g, v := range c.cut(f.groups[to].sides[model.Ingress], asked) {
			all[g-first] = append(all[g-first], v)
		}
	}
	return all
}

// mover is a node and a group with pods that are on it in one version only.
type mover struct{ node, to *Group }

// movers lists them for the nodes of a block.
func (f *family) movers(block []*Group) []mover {
	nodes := make(map[string][]*Group)
	for _, g := range block {
		if g.Node != "" {
			nodes[g.Node] = append(nodes[g.Node], g)
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	var all []mover
	for _, g := range f.groups {
		for _, m := range g.Pods {
			if m.Nodes[0] == m.Nodes[1] {
				continue
			}
			for _, name := range m.Nodes {
				for _, node := range nodes[name] {
					all = append(all, mover{node, g})
				}
			}
		}
	}
	return all
}

// source adds the changes of flows from one group.
func (d *differ) source(c *cutter, from *Group, candidates set, ingress []verdicts) {
	targets := make(map[kind][]*Group)
	var kinds []kind
	add := func(to *Group, v [4]PortsID) {
		for _, delta := range d.deltas(v) {
			k := kind{delta: delta}
			for dir, g := range [2]*Group{model.Egress: from, model.Ingress: to} {
				if delta.sides[dir] {
					k.os[dir] = g.OS[1]
				}
			}
			if targets[k] == nil {
				kinds = append(kinds, k)
			}
			targets[k] = append(targets[k], to)
		}
	}
	i := -1
	for t, e := range c.cut(from.sides[model.Egress], candidates) {
		i++
		to, in := c.f.groups[t], ingress[i]
		switch {
		case to == from && from.Single():
		case len(from.Pods) == 0 && len(to.Pods) == 0: // no policy decides
		case from.Node != "":
			d.fromNode(from, to, [4]PortsID{e[0], e[1], in[0], in[1]}, add)
		default:
			add(to, [4]PortsID{e[0], e[1], in[0], in[1]})
		}
	}
	for _, k := range kinds {
		d.join(from, targets[k], k)
	}
}

// fromNode adds the changes of flows from a node, which always reaches its own pods.
func (d *differ) fromNode(node, to *Group, v [4]PortsID, add func(*Group, [4]PortsID)) {
	split := make(map[[2]bool][]*Member)
	for _, m := range to.Pods {
		on := [2]bool{m.Nodes[0] == node.Node, m.Nodes[1] == node.Node}
		split[on] = append(split[on], m)
	}
	for _, on := range [][2]bool{{false, false}, {false, true}, {true, false}, {true, true}} {
		if len(split[on]) == 0 {
			continue
		}
		part, of := to, v
		if len(split) > 1 {
			part = to.Part(split[on])
		}
		for i := range on {
			if on[i] {
				of[2+i] = d.ports.all
			}
		}
		add(part, of)
	}
}

// deltas compares the ports that both ends allow in both versions: egress, then ingress.
func (d *differ) deltas(v [4]PortsID) []delta {
	if v[0] == v[1] && v[2] == v[3] {
		return nil
	}
	all, ok := d.known[v]
	if ok {
		return all
	}
	sets := d.ports.sets
	egress, ingress := slices.Clone(sets[v[0]]), slices.Clone(sets[v[2]])
	for i := range egress {
		egress[i] ^= sets[v[1]][i]
		ingress[i] ^= sets[v[3]][i]
	}
	for _, was := range []model.Verdict{model.Deny, model.Allow} {
		for _, sides := range [][2]bool{{true, false}, {false, true}, {true, true}} {
			found := slices.Clone(d.ports.sets[d.ports.both(v[0], v[2])]) // allowed before
			then := d.ports.sets[d.ports.both(v[1], v[3])]
			for i := range found {
				now := then[i]
				if was == model.Allow {
					found[i] &^= now
				} else {
					found[i] = now &^ found[i]
				}
				for dir, changed := range [2]uint64{model.Egress: egress[i], model.Ingress: ingress[i]} {
					if !sides[dir] {
						changed = ^changed
					}
					found[i] &= changed
				}
			}
			if !found.empty() {
				all = append(all, delta{d.ports.id(found), was, sides})
			}
		}
	}
	d.known[v] = all
	return all
}

// join adds flows to the change with the same destinations, if there is one.
func (d *differ) join(from *Group, to []*Group, k kind) {
	key := binary.LittleEndian.AppendUint32(nil, uint32(k.ports))
	key = append(key, byte(k.was))
	for dir, os := range k.os {
		key = append(append(key, boolByte(k.sides[dir])), os...)
		key = append(key, 0)
	}
	for _, g := range to {
		key = append(key, boolByte(g.V6))
		key = binary.LittleEndian.AppendUint32(key, uint32(g.id))
		if whole := d.Partition.family(g.V6).groups[g.id]; whole != g { // a part, which has names of its own
			for _, m := range g.Pods {
				key = append(append(key, m.ID.Name...), 0)
			}
		}
	}
	if c := d.byTargets[string(key)]; c != nil {
		c.From = append(c.From, from)
		return
	}
	c := &Change{From: []*Group{from}, To: to, Ports: k.ports, Was: k.was, Is: 1 - k.was}
	for _, dir := range []model.Direction{model.Egress, model.Ingress} {
		if k.sides[dir] {
			c.By = append(c.By, Side{dir, k.os[dir]})
		}
	}
	d.byTargets[string(key)] = c
	d.order = append(d.order, string(key))
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func (d *differ) changes() []Change {
	all := make([]Change, 0, len(d.order))
	for _, key := range d.order {
		all = append(all, *d.byTargets[key])
	}
	return all
}
