// SPDX-License-Identifier: Apache-2.0

package denylist

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// Action is what an entry says of its addresses: enum deny_action of
// bpf/include/deny.h.
type Action uint32

// The actions.
const (
	Deny Action = iota
	// Spare is of single addresses only: not denied, though a prefix covers it.
	Spare
)

// Entries are the content of the maps.
type Entries struct {
	Singles  map[netip.Addr]Action
	Prefixes map[netip.Prefix]bool
}

// NewEntries returns the content of empty maps.
func NewEntries() *Entries {
	return &Entries{Singles: make(map[netip.Addr]Action), Prefixes: make(map[netip.Prefix]bool)}
}

// Layout says what the maps should hold for a set; nil is the empty one. also
// are further addresses that are not denied.
func Layout(s *model.DenySet, also []netip.Addr) *Entries {
	e := NewEntries()
	if s == nil {
		return e
	}
	for _, p := range s.Prefixes {
		if p.IsSingleIP() {
			e.Singles[p.Addr()] = Deny
		} else {
			e.Prefixes[p] = true
		}
	}
	for _, a := range slices.Concat(s.Spared, also) {
		if _, listed := s.Covering(a); listed {
			e.Singles[a] = Spare
		}
	}
	return e
}

// Capacity is how much each of the maps holds: single addresses and prefixes,
// of each family.
type Capacity struct{ Singles, Prefixes int }

// Fits fails if there is more than the maps hold.
func (e *Entries) Fits(c Capacity) error {
	var singles, prefixes [2]int
	for a := range e.Singles {
		singles[family(a)]++
	}
	for p := range e.Prefixes {
		prefixes[family(p.Addr())]++
	}
	for f, name := range []string{"IPv4", "IPv6"} {
		if singles[f] > c.Singles {
			return fmt.Errorf("deny lists have %d single %s addresses, at most %d find a place: unite neighbours to prefixes", singles[f], name, c.Singles)
		}
		if prefixes[f] > c.Prefixes {
			return fmt.Errorf("deny lists have %d %s prefixes, at most %d find a place: unite neighbours", prefixes[f], name, c.Prefixes)
		}
	}
	return nil
}

// family is 0 for IPv4, 1 for IPv6.
func family(a netip.Addr) int {
	if a.Is6() {
		return 1
	}
	return 0
}

// Count returns the number of denied entries of each family, spared addresses
// left out.
func (e *Entries) Count() (n [2]int) {
	for a, action := range e.Singles {
		if action == Deny {
			n[family(a)]++
		}
	}
	for p := range e.Prefixes {
		n[family(p.Addr())]++
	}
	return n
}

// Sieves returns the sieve of each family for what is in the entries.
func (e *Entries) Sieves() [2]Sieve {
	s := [2]Sieve{make(Sieve, Words), make(Sieve, Words)}
	for a := range e.Singles {
		s[family(a)].addSingle(a)
	}
	for p := range e.Prefixes {
		s[family(p.Addr())].addPrefix(p)
	}
	return s
}

// Lookup decides as the program does: whether what comes from an address is
// dropped.
func (e *Entries) Lookup(sieves [2]Sieve, a netip.Addr) bool {
	singles, prefixes := sieves[family(a)].may(a)
	if singles {
		if action, ok := e.Singles[a]; ok {
			return action == Deny
		}
	}
	if !prefixes {
		return false
	}
	for bits := a.BitLen(); bits >= 0; bits-- {
		if p, err := a.Prefix(bits); err == nil && e.Prefixes[p] {
			return true
		}
	}
	return false
}

// Writes lead from one content to another, in the order of the fields: first
// the sieves let through what either content has, at last what the new one has.
type Writes struct {
	Singles      []Single
	Prefixes     []netip.Prefix
	DropPrefixes []netip.Prefix
	DropSingles  []netip.Addr
}

// Single is an entry of one address.
type Single struct {
	Addr   netip.Addr
	Action Action
}

// Diff works out the writes. Spared addresses are there before a prefix that
// covers them, and go after it.
func Diff(from, to *Entries) *Writes {
	w := &Writes{}
	for a, action := range to.Singles {
		if was, ok := from.Singles[a]; !ok || was != action {
			w.Singles = append(w.Singles, Single{a, action})
		}
	}
	for p := range to.Prefixes {
		if !from.Prefixes[p] {
			w.Prefixes = append(w.Prefixes, p)
		}
	}
	for p := range from.Prefixes {
		if !to.Prefixes[p] {
			w.DropPrefixes = append(w.DropPrefixes, p)
		}
	}
	for a := range from.Singles {
		if _, ok := to.Singles[a]; !ok {
			w.DropSingles = append(w.DropSingles, a)
		}
	}
	slices.SortFunc(w.Singles, func(a, b Single) int { return a.Addr.Compare(b.Addr) })
	slices.SortFunc(w.Prefixes, model.ComparePrefixes)
	slices.SortFunc(w.DropPrefixes, model.ComparePrefixes)
	slices.SortFunc(w.DropSingles, netip.Addr.Compare)
	return w
}

// None reports whether there is nothing to write.
func (w *Writes) None() bool {
	return len(w.Singles)+len(w.Prefixes)+len(w.DropPrefixes)+len(w.DropSingles) == 0
}

// Union returns a content that has all of both, for a sieve that lets through
// what either has.
func Union(a, b *Entries) *Entries {
	u := &Entries{Singles: maps.Clone(a.Singles), Prefixes: maps.Clone(a.Prefixes)}
	maps.Copy(u.Singles, b.Singles)
	maps.Copy(u.Prefixes, b.Prefixes)
	return u
}
