// SPDX-License-Identifier: Apache-2.0

package corpus_test

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/common/model"
)

// tableGroup is a table, its endpoints in ascending order, and their pods.
type tableGroup struct {
	table     *model.Table
	endpoints []model.EndpointID
	pods      []string
}

// groups returns the tables of a State in order of their pods.
func groups(s *model.State) []tableGroup {
	all := make(map[model.TableID]tableGroup)
	for _, id := range slices.Sorted(maps.Keys(s.Policy.Endpoints)) {
		e := s.Policy.Endpoints[id]
		g := all[e.Table]
		g.table, g.endpoints, g.pods = s.Policy.Tables[e.Table], append(g.endpoints, id), append(g.pods, e.Pod.String())
		all[e.Table] = g
	}
	return slices.SortedFunc(maps.Values(all), func(a, b tableGroup) int { return slices.Compare(a.pods, b.pods) })
}

// open reports whether a table allows everything.
func (g tableGroup) open(s *model.State) bool {
	all := spans(s)
	for i := range g.table.Sides {
		for _, c := range append(classes(s), model.World) {
			if rowText(all, g.table.Sides[i].Row(c)) != "all" {
				return false
			}
		}
	}
	return true
}

// classes lists the classes of addresses and prefixes.
func classes(s *model.State) []model.PeerClass {
	seen := make(map[model.PeerClass]bool)
	for _, c := range s.Policy.Addresses.All() {
		seen[c] = true
	}
	for _, p := range s.Policy.Prefixes {
		seen[p.Class] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

func rowText(all []portSpan, r *model.Row) string {
	return portText(all, func(s portSpan) bool { return r.Cell(s.Class).Verdict == model.Allow })
}

// renderTables writes every table without redundant lines: it lists an address or prefix only if
// its row differs from that of the longest prefix around it. It shows neither numbers nor classes.
func renderTables(c *engine.Cluster) (string, error) {
	n := newNames(c.Snapshot)
	var out lines
	for _, node := range slices.Sorted(maps.Keys(c.States)) {
		s := c.States[node]
		for _, g := range groups(s) {
			if g.open(s) {
				out.add(node, " ", strings.Join(g.pods, " "), ": open")
				continue
			}
			out.add(node, " ", strings.Join(g.pods, " "))
			for _, d := range model.Directions {
				out.add("  ", d.String())
				for _, line := range sideLines(s, &g.table.Sides[d], n) {
					out.add("    ", line)
				}
			}
		}
	}
	return out.String(), nil
}

func sideLines(s *model.State, side *model.Side, n names) []string {
	all := spans(s)
	rows := make(map[model.PeerClass]string)
	text := func(c model.PeerClass) string {
		if _, ok := rows[c]; !ok {
			rows[c] = rowText(all, side.Row(c))
		}
		return rows[c]
	}
	members := make(map[string][]netip.Prefix)
	add := func(p netip.Prefix, c, around model.PeerClass) {
		if text(c) != text(around) {
			members[text(c)] = append(members[text(c)], p)
		}
	}
	for a, c := range s.Policy.Addresses.All() {
		add(single(a), c, s.Policy.PrefixClass(single(a)))
	}
	for _, p := range s.Policy.Prefixes {
		around := model.World
		if p.Prefix.Bits() > 0 {
			wider := netip.PrefixFrom(p.Prefix.Addr(), p.Prefix.Bits()-1).Masked()
			around = s.Policy.PrefixClass(wider)
		}
		add(p.Prefix, p.Class, around)
	}
	var out []string
	for _, row := range slices.Sorted(maps.Keys(members)) {
		out = append(out, row+": "+n.list(members[row]))
	}
	return append(out, text(model.World)+": else")
}
