// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// delta is a set of cells whose verdict changed in one way.
type delta struct {
	cells   []int
	was, is model.Verdict
	sides   [2]bool // by direction: whose decision changed
}

// found is a delta between two groups of a survey of two variants.
type found struct {
	from, to *group
	delta    *delta
}

// changes compares every pair of groups. Groups that change in the same way are
// joined, first by destination and then by source.
func (s *survey) changes() []diffChange {
	c := comparison{survey: s, known: make(map[[2]rows][]*delta)}
	for _, from := range s.groups {
		for _, to := range s.groups {
			if len(from.pods) > 0 || len(to.pods) > 0 {
				c.compare(from, to)
			}
		}
	}
	for _, node := range s.nodes {
		for _, g := range s.groups {
			if len(g.pods) == 0 {
				continue
			}
			c.compare(g, node)
			c.compareNode(node, g)
		}
	}
	return c.join()
}

type comparison struct {
	*survey
	// known are the deltas of all pairs that have the same rows.
	known map[[2]rows][]*delta
	found []found
}

func (c *comparison) compare(from, to *group) {
	if from.v6 != to.v6 || from == to && from.selfOnly() {
		return
	}
	c.compareRows(from, to, [2]rows{c.rows(0, from, to), c.rows(1, from, to)})
}

// compareNode compares what a node sends to pods: those on the node itself are
// always reached.
func (c *comparison) compareNode(node, g *group) {
	if node.v6 != g.v6 {
		return
	}
	split := make(map[[2]bool]*group)
	for _, m := range g.pods {
		on := [2]bool{m.nodes[0] == node.node, m.nodes[1] == node.node}
		if split[on] == nil {
			part := *g
			part.pods = nil
			split[on] = &part
		}
		split[on].pods = append(split[on].pods, m)
	}
	for on, part := range split {
		var r [2]rows
		for w := range r {
			if r[w] = c.rows(w, node, g); on[w] {
				r[w][model.Ingress] = nil
			}
		}
		if len(split) == 1 {
			part = g
		}
		c.compareRows(node, part, r)
	}
}

func (c *comparison) compareRows(from, to *group, r [2]rows) {
	deltas, ok := c.known[r]
	if !ok {
		deltas = c.deltas(from, to, r)
		c.known[r] = deltas
	}
	for _, d := range deltas {
		c.found = append(c.found, found{from, to, d})
	}
}

// deltas compares all cells of ports. A row belongs to one State, so that two
// pairs of groups with the same rows have the same deltas.
func (c *comparison) deltas(from, to *group, r [2]rows) []*delta {
	if r[0] == r[1] && r[0] == (rows{}) {
		return nil
	}
	var all []*delta
	for cell := range c.ports {
		was, is := c.flow(0, from, to, r[0], cell), c.flow(1, from, to, r[1], cell)
		if was == is {
			continue
		}
		sides := [2]bool{
			model.Egress:  c.decide(0, from, r[0][model.Egress], cell) != c.decide(1, from, r[1][model.Egress], cell),
			model.Ingress: c.decide(0, to, r[0][model.Ingress], cell) != c.decide(1, to, r[1][model.Ingress], cell),
		}
		i := slices.IndexFunc(all, func(d *delta) bool { return d.was == was && d.sides == sides })
		if i < 0 {
			i = len(all)
			all = append(all, &delta{was: was, is: is, sides: sides})
		}
		all[i].cells = append(all[i].cells, cell)
	}
	return all
}

// rectangle is all flows from some groups to some groups.
type rectangle struct {
	from, to []*group
	change   diffChange
}

// join makes rectangles of the pairs that change in the same way.
func (c *comparison) join() []diffChange {
	bySource := c.joinBy(func(f *found) string { return fmt.Sprintf("%p", f.from) })
	byTargets := make(map[string]*rectangle)
	var order []string
	for _, r := range bySource {
		key := changeKey(r.change)
		for _, g := range r.to {
			key += fmt.Sprintf(" %p", g)
		}
		if byTargets[key] == nil {
			byTargets[key] = r
			order = append(order, key)
			continue
		}
		byTargets[key].from = append(byTargets[key].from, r.from...)
	}
	all := []diffChange{}
	for _, key := range order {
		r := byTargets[key]
		r.change.From, r.change.To = namesOf(r.from), namesOf(r.to)
		all = append(all, r.change)
	}
	slices.SortStableFunc(all, func(a, b diffChange) int {
		return cmp.Or(cmp.Compare(a.Was, b.Was), slices.Compare(a.From, b.From), slices.Compare(a.To, b.To), cmp.Compare(changeKey(a), changeKey(b)))
	})
	return all
}

// joinBy joins pairs that have a source and the kind of change in common.
func (c *comparison) joinBy(source func(*found) string) []*rectangle {
	joined := make(map[string]*rectangle)
	var all []*rectangle
	for i := range c.found {
		f := &c.found[i]
		change := c.change(f)
		key := source(f) + " " + changeKey(change)
		if joined[key] == nil {
			joined[key] = &rectangle{from: []*group{f.from}, change: change}
			all = append(all, joined[key])
		}
		joined[key].to = append(joined[key].to, f.to)
	}
	return all
}

// change is the report on a pair, without the names of its ends.
func (c *comparison) change(f *found) diffChange {
	change := diffChange{Ports: c.portSets(f.delta.cells), Was: f.delta.was.String(), Is: f.delta.is.String()}
	for _, side := range []struct {
		d   model.Direction
		pod *group
	}{{model.Egress, f.from}, {model.Ingress, f.to}} {
		if f.delta.sides[side.d] {
			change.By = append(change.By, diffSide{side.d.String(), side.pod.os[1]})
		}
	}
	return change
}

// changeKey is a text that only changes of one kind share.
func changeKey(c diffChange) string { return fmt.Sprint(c.Was, c.Is, c.Ports, c.By) }

func namesOf(groups []*group) []string {
	var names []string
	for _, g := range groups {
		names = append(names, g.names()...)
	}
	slices.SortFunc(names, strings.Compare)
	return names
}
