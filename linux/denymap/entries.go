// SPDX-License-Identifier: Apache-2.0

package denymap

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// Action is the action of an entry: enum deny_action of bpf/include/deny_list.h.
type Action uint32

// The actions.
const (
	Deny Action = iota
	// Exempt exempts a single address, even if a prefix contains it.
	Exempt
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

// Layout returns the map content for a set; nil is the empty set. also are further exempt
// addresses.
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
	for _, a := range slices.Concat(s.Exempt, also) {
		if _, listed := s.Covering(a); listed {
			e.Singles[a] = Exempt
		}
	}
	return e
}

// Capacity is the size of the maps: single addresses and prefixes, for each IP version.
type Capacity struct{ Singles, Prefixes int }

// Fits returns an error if the maps cannot hold the entries.
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
			return fmt.Errorf("deny lists have %d single %s addresses, at most %d fit: merge adjacent addresses into prefixes", singles[f], name, c.Singles)
		}
		if prefixes[f] > c.Prefixes {
			return fmt.Errorf("deny lists have %d %s prefixes, at most %d fit: merge adjacent prefixes", prefixes[f], name, c.Prefixes)
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

// Count returns the number of denied entries for each IP version, without exempt addresses.
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

// Prefilters returns the prefilter of each IP version for the entries.
func (e *Entries) Prefilters() [2]Prefilter {
	s := [2]Prefilter{make(Prefilter, Words), make(Prefilter, Words)}
	for a := range e.Singles {
		s[family(a)].addSingle(a)
	}
	for p := range e.Prefixes {
		s[family(p.Addr())].addPrefix(p)
	}
	return s
}

// Lookup decides as the program does: it reports whether packets from an address are dropped.
func (e *Entries) Lookup(prefilters [2]Prefilter, a netip.Addr) bool {
	singles, prefixes := prefilters[family(a)].may(a)
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

// Writes lead from one content to another, in the order of the fields. First the prefilter
// passes candidates of both contents, at the end only those of the new one.
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

// Diff computes the writes. An exempt address is written before a prefix that contains it, and
// removed after it.
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

// Union returns a content with the entries of both, for a prefilter that passes candidates of
// both.
func Union(a, b *Entries) *Entries {
	u := &Entries{Singles: maps.Clone(a.Singles), Prefixes: maps.Clone(a.Prefixes)}
	maps.Copy(u.Singles, b.Singles)
	maps.Copy(u.Prefixes, b.Prefixes)
	return u
}
