// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// rule is an ACL before its addresses are written out. Rules are ordered; the
// first that matches decides.
type rule struct {
	verdict model.Verdict
	// protocols are those with ports that are meant; nil means every protocol.
	protocols []model.Protocol
	// ports are disjoint and ascending; nil means every port.
	ports []hns.PortRange
	// cells are what the rule matches.
	cells cellSet
	who   members
	// node marks the rule that lets this node in.
	node bool
}

// members are the remote addresses that a rule matches, all of one family. The
// zero value with anyone set stands for every address of both families.
type members struct {
	anyone  bool
	family  int
	cohorts []int // ascending
	// prefixes are indices of prefix nodes, ascending.
	prefixes []int
}

func (m members) equal(o members) bool {
	return m.anyone == o.anyone && m.family == o.family && slices.Equal(m.cohorts, o.cohorts) && slices.Equal(m.prefixes, o.prefixes)
}

func (m members) union(o members) members {
	m.cohorts = merge(m.cohorts, o.cohorts)
	m.prefixes = merge(m.prefixes, o.prefixes)
	return m
}

func merge(a, b []int) []int {
	u := append(slices.Clone(a), b...)
	slices.Sort(u)
	return slices.Compact(u)
}

// overlaps reports whether some address is in both. The parts of one prefix
// that were cut out of it count as in it.
func (m members) overlaps(o members, f *family) bool {
	if m.anyone || o.anyone {
		return true
	}
	for _, c := range m.cohorts {
		if _, ok := slices.BinarySearch(o.cohorts, c); ok {
			return true
		}
	}
	for _, pair := range [][2]members{{m, o}, {o, m}} {
		for _, p := range pair[0].prefixes {
			if slices.ContainsFunc(pair[1].cohorts, func(c int) bool { return f.encloses(p, f.cohorts[c].cover) }) ||
				slices.ContainsFunc(pair[1].prefixes, func(q int) bool { return f.encloses(p, q) }) {
				return true
			}
		}
	}
	return false
}

// portsOf returns the ranges of a set of cells of one protocol, joined where
// they touch and where every cell in between is in fill. All ports give nil.
func (x *index) portsOf(p model.Protocol, cells, fill cellSet) ([]hns.PortRange, cellSet) {
	covered := newCellSet(len(x.cells))
	var ranges []hns.PortRange
	var pending []int // cells of fill since the last range
	for i, c := range x.cells {
		if i == 0 || c.protocol != p {
			continue
		}
		switch {
		case cells.has(i):
			n := len(ranges)
			if n > 0 && (len(pending) > 0 || int(ranges[n-1].Last)+1 == int(c.first)) {
				ranges[n-1].Last = c.last
				for _, j := range pending {
					covered.add(j)
				}
			} else {
				ranges = append(ranges, hns.PortRange{First: c.first, Last: c.last})
			}
			covered.add(i)
			pending = nil
		case fill.has(i) && len(ranges) > 0 && (len(pending) > 0 || int(ranges[len(ranges)-1].Last)+1 == int(c.first)):
			pending = append(pending, i)
		default:
			pending = nil
		}
	}
	if len(ranges) == 1 && ranges[0] == (hns.PortRange{First: 0, Last: 65535}) {
		return nil, covered
	}
	return ranges, covered
}

// portText writes ports as HNS reads them: "80,8000-8010".
func portText(ranges []hns.PortRange) string {
	parts := make([]string, len(ranges))
	for i, r := range ranges {
		parts[i] = fmt.Sprint(r.First)
		if r.First != r.Last {
			parts[i] = fmt.Sprintf("%d-%d", r.First, r.Last)
		}
	}
	return strings.Join(parts, ",")
}

// protocolText writes protocols as HNS reads them: "6,17", or "256" for any.
func protocolText(protocols []model.Protocol) string {
	if protocols == nil {
		return fmt.Sprint(hns.AnyProtocol)
	}
	parts := make([]string, len(protocols))
	for i, p := range protocols {
		parts[i] = fmt.Sprint(uint8(p))
	}
	return strings.Join(parts, ",")
}

// compareRules gives rules that may stand in any order a fixed one: by
// protocols and ports, blocks first, then by members.
func compareRules(a, b rule) int {
	return cmp.Or(
		slices.Compare(a.protocols, b.protocols),
		slices.CompareFunc(a.ports, b.ports, func(p, q hns.PortRange) int {
			return cmp.Or(cmp.Compare(p.First, q.First), cmp.Compare(p.Last, q.Last))
		}),
		cmp.Compare(a.verdict, b.verdict),
		slices.Compare(a.who.prefixes, b.who.prefixes),
		slices.Compare(a.who.cohorts, b.who.cohorts),
	)
}
