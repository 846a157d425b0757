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

// rule is an ACL before its addresses are formatted. Rules are ordered; the first that matches decides.
type rule struct {
	verdict model.Verdict
	// protocols are the protocols with ports that the rule matches; nil means every protocol.
	protocols []model.Protocol
	// ports are disjoint and ascending; nil means every port.
	ports []hns.PortRange
	// cells are the cells that the rule matches.
	cells cellSet
	who   members
	// node marks the rule that allows this node.
	node bool
}

// members are the remote addresses that a rule matches, all of one family. The zero value with anyone set
// matches every address of both families.
type members struct {
	anyone     bool
	family     int
	addrGroups []int // ascending
	// prefixes are indices of prefix nodes, ascending.
	prefixes []int
}

func (m members) equal(o members) bool {
	return m.anyone == o.anyone && m.family == o.family && slices.Equal(m.addrGroups, o.addrGroups) && slices.Equal(m.prefixes, o.prefixes)
}

func (m members) union(o members) members {
	m.addrGroups = merge(m.addrGroups, o.addrGroups)
	m.prefixes = merge(m.prefixes, o.prefixes)
	return m
}

func merge(a, b []int) []int {
	u := append(slices.Clone(a), b...)
	slices.Sort(u)
	return slices.Compact(u)
}

// overlaps reports whether an address is in both. Parts that were cut out of a prefix count as inside.
func (m members) overlaps(o members, f *family) bool {
	if m.anyone || o.anyone {
		return true
	}
	for _, c := range m.addrGroups {
		if _, ok := slices.BinarySearch(o.addrGroups, c); ok {
			return true
		}
	}
	for _, pair := range [][2]members{{m, o}, {o, m}} {
		for _, p := range pair[0].prefixes {
			if slices.ContainsFunc(pair[1].addrGroups, func(c int) bool { return f.encloses(p, f.addrGroups[c].cover) }) ||
				slices.ContainsFunc(pair[1].prefixes, func(q int) bool { return f.encloses(p, q) }) {
				return true
			}
		}
	}
	return false
}

// portsOf returns the ranges of a set of cells of one protocol. It joins ranges that touch, or whose gap
// consists of cells in fill. All ports give nil.
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

// portText formats ports for HNS: "80,8000-8010".
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

// protocolText formats protocols for HNS: "6,17", or "256" for any.
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

// compareRules defines an order of rules whose order does not matter: by protocols and ports, blocks first,
// then by members.
func compareRules(a, b rule) int {
	return cmp.Or(
		slices.Compare(a.protocols, b.protocols),
		slices.CompareFunc(a.ports, b.ports, func(p, q hns.PortRange) int {
			return cmp.Or(cmp.Compare(p.First, q.First), cmp.Compare(p.Last, q.Last))
		}),
		cmp.Compare(a.verdict, b.verdict),
		slices.Compare(a.who.prefixes, b.who.prefixes),
		slices.Compare(a.who.addrGroups, b.who.addrGroups),
	)
}
