// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"fmt"
)

// Reach computes the first version's verdicts between groups of one address family. It calls
// row for each source in order, with the ports that it may reach at each destination; it
// reuses the slice. It ends with the first error of row. It does not consider that a node
// always reaches its own pods.
func (p *Partition) Reach(from, to []*Group, row func(i int, allowed []PortsID) error) error {
	if len(from) == 0 || len(to) == 0 {
		return nil
	}
	f := p.family(from[0].V6)
	for _, g := range append(append([]*Group(nil), from...), to...) {
		if g.V6 != from[0].V6 {
			return fmt.Errorf("group of %s: not of the address family of the others", g.Namespace)
		}
	}
	c := f.newCutter()
	targets, place := f.members(to)
	allowed := make([]PortsID, len(to))
	for first := 0; first < len(from); first += p.block {
		block := from[first:min(first+p.block, len(from))]
		ingress := f.ingress(c, block, to)
		for i, g := range block {
			for t, v := range c.cut(g.sides[1], targets) {
				allowed[place[t]] = p.ports.both(v[0], ingress[place[t]][i])
			}
			if err := row(first+i, allowed); err != nil {
				return err
			}
			p.progress(first+i+1, len(from))
		}
	}
	return nil
}

// ingress returns the ports that each destination admits from each source.
func (f *family) ingress(c *cutter, from, to []*Group) [][]PortsID {
	sources, place := f.members(from)
	known := make(map[*pair][]PortsID)
	all := make([][]PortsID, len(to))
	for j, g := range to {
		if known[g.sides[0]] == nil {
			row := make([]PortsID, len(from))
			for s, v := range c.cut(g.sides[0], sources) {
				row[place[s]] = v[0]
			}
			known[g.sides[0]] = row
		}
		all[j] = known[g.sides[0]]
	}
	return all
}

// members returns the groups as a set, and the position of each in the list.
func (f *family) members(groups []*Group) (set, []int32) {
	s, place := newSet(len(f.groups)), make([]int32, len(f.groups))
	for i, g := range groups {
		s.add(g.id)
		place[g.id] = int32(i)
	}
	return s, place
}

func (p *Partition) progress(done, total int) {
	if p.Progress != nil {
		p.Progress(done, total)
	}
}
