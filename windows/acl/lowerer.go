// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// Lowerer lowers one State after another. It returns the same as Lower. It recomputes the rules of a table
// only if they may differ: not if addresses have moved between classes that the table does not distinguish.
// The zero value is ready to use.
type Lowerer struct{ known map[fingerprint]layout }

// Lower is like the function Lower.
func (l *Lowerer) Lower(s *model.State, o Options, platform string) *Lowering {
	m := &memory{known: l.known, used: make(map[fingerprint]layout)}
	lowering := lower(s, o, platform, m)
	l.known = m.used // forget layouts that this State did not use
	return lowering
}

// fingerprint is a hash of everything that the rules of a direction of a table depend on, except the
// members of address groups.
type fingerprint [sha256.Size]byte

// memory holds layouts whose address groups are numbered among those that matter.
type memory struct{ known, used map[fingerprint]layout }

// layout returns the layout of a side, computed or remembered.
func (m *memory) layout(s *side) layout {
	key, matter := s.fingerprint()
	if _, ok := m.used[key]; !ok {
		known, ok := m.known[key]
		if !ok {
			known = s.layout().withAddressGroups(func(family, addressGroup int) int {
				place, _ := slices.BinarySearch(matter[family], addressGroup)
				return place
			})
		}
		m.used[key] = known
	}
	return m.used[key].withAddressGroups(func(family, place int) int { return matter[family][place] })
}

// withAddressGroups returns a copy with other numbers for the address groups, in the same order.
func (l layout) withAddressGroups(number func(family, addressGroup int) int) layout {
	l.rules = slices.Clone(l.rules)
	for i := range l.rules {
		who := &l.rules[i].who
		addrGroups := who.addrGroups
		who.addrGroups = nil
		for _, c := range addrGroups {
			who.addrGroups = append(who.addrGroups, number(who.family, c))
		}
	}
	return l
}

// fingerprint also returns, by family, the address groups that matter: those whose verdicts differ from the
// prefix around them, and those of this node. No rule contains any other group, because its prefix already
// decides the same.
func (s *side) fingerprint() (key fingerprint, matter [2][]int) {
	var b []byte
	add := func(numbers ...int) {
		for _, n := range numbers {
			b = binary.AppendVarint(b, int64(n))
		}
	}
	flag := func(f bool) {
		if f {
			add(1)
		} else {
			add(0)
		}
	}
	add(int(s.d), len(s.cells))
	flag(s.options.Sets)
	flag(s.options.NoIPv6)
	for _, c := range s.cells {
		add(int(c.protocol), int(c.first), int(c.last))
	}
	for v := range s.families {
		f := &s.families[v]
		add(len(f.prefixes))
		flag(len(f.node) > 0)
		for _, p := range f.prefixes {
			addr := p.prefix.Addr().As16()
			b = append(append(b, addr[:]...), byte(p.prefix.Bits()))
			b = append(b, s.verdicts(p.class).key()...)
		}
		for i, c := range f.addrGroups {
			want := s.verdicts(c.class)
			in := slices.Contains(s.nodeIn[v], i)
			if !in && want.equal(s.verdicts(f.prefixes[c.cover].class)) {
				continue
			}
			matter[v] = append(matter[v], i)
			flag(in)
			add(c.cover, len(c.addrs)) // the choice of rules depends on how many addresses they contain
			b = append(b, want.key()...)
		}
		add(len(matter[v]))
	}
	return sha256.Sum256(b), matter
}
