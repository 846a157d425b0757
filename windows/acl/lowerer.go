// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// Lowerer lowers one State after another. It gives what Lower gives, and works
// out the rules of a table again only if they can be others: not if addresses
// have changed places that the table does not tell apart. The zero value is
// ready.
type Lowerer struct{ known map[fingerprint]layout }

// Lower is like the function Lower.
func (l *Lowerer) Lower(s *model.State, o Options, platform string) *Lowering {
	m := &memory{known: l.known, used: make(map[fingerprint]layout)}
	lowering := lower(s, o, platform, m)
	l.known = m.used // what nobody has asked for is forgotten
	return lowering
}

// fingerprint sums up all that the rules of a direction of a table depend on,
// except for who is in the cohorts.
type fingerprint [sha256.Size]byte

// memory holds layouts whose cohorts are numbered among those that matter.
type memory struct{ known, used map[fingerprint]layout }

// layout returns the layout of a side, worked out or remembered.
func (m *memory) layout(s *side) layout {
	key, matter := s.fingerprint()
	if _, ok := m.used[key]; !ok {
		known, ok := m.known[key]
		if !ok {
			known = s.layout().withCohorts(func(family, cohort int) int {
				place, _ := slices.BinarySearch(matter[family], cohort)
				return place
			})
		}
		m.used[key] = known
	}
	return m.used[key].withCohorts(func(family, place int) int { return matter[family][place] })
}

// withCohorts returns a copy with other numbers for the cohorts, in the same
// order.
func (l layout) withCohorts(number func(family, cohort int) int) layout {
	l.rules = slices.Clone(l.rules)
	for i := range l.rules {
		who := &l.rules[i].who
		cohorts := who.cohorts
		who.cohorts = nil
		for _, c := range cohorts {
			who.cohorts = append(who.cohorts, number(who.family, c))
		}
	}
	return l
}

// fingerprint also lists, by family, the cohorts that matter: those that want
// something else than the prefix around them, and those of this node. All
// others are in no rule, and say nothing that a prefix does not say.
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
		for i, c := range f.cohorts {
			want := s.verdicts(c.class)
			in := slices.Contains(s.nodeIn[v], i)
			if !in && want.equal(s.verdicts(f.prefixes[c.cover].class)) {
				continue
			}
			matter[v] = append(matter[v], i)
			flag(in)
			add(c.cover, len(c.addrs)) // rules are chosen by how many addresses they name
			b = append(b, want.key()...)
		}
		add(len(matter[v]))
	}
	return sha256.Sum256(b), matter
}
