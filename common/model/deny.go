// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// KindDenyList is the kind of the objects behind DenyList.
const KindDenyList = "DenyList"

// DenyList is an object that lists addresses from which nodes take nothing in.
// It is immutable.
type DenyList struct {
	Name string
	// Entries are masked and sorted; a single address is a prefix of full length.
	Entries []netip.Prefix
}

// Origin names the object.
func (l *DenyList) Origin() Origin { return Origin{Kind: KindDenyList, Name: l.Name} }

// DenySet is all deny lists of a cluster as one node should enforce them:
// whatever arrives from a listed source is dropped, of established flows too. It
// is immutable; a change makes another one, so that pointers tell.
type DenySet struct {
	// Lists are what the set was made of, by name.
	Lists []*DenyList
	// Prefixes are the listed addresses: sorted, none within another.
	Prefixes []netip.Prefix
	// Spared are addresses inside Prefixes that are not denied all the same,
	// sorted: those of the cluster's nodes.
	Spared []netip.Addr
}

// MakeDenySet unites lists. It returns nil if there are none.
func MakeDenySet(lists Map[string, *DenyList]) *DenySet {
	if lists.Len() == 0 {
		return nil
	}
	s := &DenySet{}
	n := 0
	for _, l := range lists.All() {
		s.Lists = append(s.Lists, l)
		n += len(l.Entries)
	}
	slices.SortFunc(s.Lists, func(a, b *DenyList) int { return strings.Compare(a.Name, b.Name) })
	all := make([]netip.Prefix, 0, n)
	for _, l := range s.Lists {
		all = append(all, l.Entries...)
	}
	slices.SortFunc(all, ComparePrefixes)
	for _, p := range all { // what contains others sorts before them
		if i := len(s.Prefixes); i == 0 || !s.Prefixes[i-1].Contains(p.Addr()) {
			s.Prefixes = append(s.Prefixes, p)
		}
	}
	return s
}

// Sparing returns the set with other spared addresses: those of the given ones
// that it lists.
func (s *DenySet) Sparing(addresses []netip.Addr) *DenySet {
	var spared []netip.Addr
	for _, a := range addresses {
		if _, ok := s.Covering(a); ok {
			spared = append(spared, a)
		}
	}
	slices.SortFunc(spared, netip.Addr.Compare)
	spared = slices.Compact(spared)
	if slices.Equal(spared, s.Spared) {
		return s
	}
	return &DenySet{Lists: s.Lists, Prefixes: s.Prefixes, Spared: spared}
}

// Covering returns the prefix of the set that contains an address, spared or
// not.
func (s *DenySet) Covering(a netip.Addr) (netip.Prefix, bool) {
	i, found := slices.BinarySearchFunc(s.Prefixes, a, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	if !found {
		i--
	}
	if i < 0 || !s.Prefixes[i].Contains(a) {
		return netip.Prefix{}, false
	}
	return s.Prefixes[i], true
}

// Denies reports whether nothing from an address is taken in.
func (s *DenySet) Denies(a netip.Addr) bool {
	_, listed := s.Covering(a)
	_, spared := slices.BinarySearchFunc(s.Spared, a, netip.Addr.Compare)
	return listed && !spared
}

// Sparings reports the entries that are not enforced because an address that
// they contain is spared; whose says who has it, as in "of node a".
func (s *DenySet) Sparings(a netip.Addr, whose string) []Unsupported {
	var all []Unsupported
	for _, l := range s.Lists {
		i := slices.IndexFunc(l.Entries, func(p netip.Prefix) bool { return p.Contains(a) })
		if i < 0 {
			continue
		}
		all = append(all, Unsupported{Policy: l.Origin(), Rule: -1, Construct: "entry " + l.Entries[i].String(), Effect: Refused,
			Reason: fmt.Sprintf("%s is an address %s and is not denied: list the ranges around it", a, whose)})
	}
	return all
}
