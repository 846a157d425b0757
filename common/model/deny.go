// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model/immutable"
)

// KindDenyList is the kind of the API objects that DenyList represents.
const KindDenyList = "DenyList"

// DenyList is an object that lists source addresses whose packets nodes drop. It is immutable.
type DenyList struct {
	Name string
	// UID is the UID of the object, empty if it was not read from an API server.
	UID string
	// Entries are masked and sorted; a single address is a prefix of full length.
	Entries []netip.Prefix
}

// Origin names the object.
func (l *DenyList) Origin() Origin { return Origin{Kind: KindDenyList, Name: l.Name, UID: l.UID} }

// DenySet is the union of a cluster's deny lists as one node enforces it. A packet from a listed source is
// dropped, also if it belongs to an established flow. It is immutable; a change creates another one, so
// that comparing pointers is enough.
type DenySet struct {
	// Lists are the lists that the set consists of, by name.
	Lists []*DenyList
	// Prefixes are the listed addresses: sorted, none within another.
	Prefixes []netip.Prefix
	// Exempt are addresses inside Prefixes that are exempt from the deny list, sorted: those of the
	// cluster's nodes.
	Exempt []netip.Addr
}

// MakeDenySet returns the union of lists, or nil without lists.
func MakeDenySet(lists immutable.Map[string, *DenyList]) *DenySet {
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
	for _, p := range all { // a prefix sorts before those that it contains
		if i := len(s.Prefixes); i == 0 || !s.Prefixes[i-1].Contains(p.Addr()) {
			s.Prefixes = append(s.Prefixes, p)
		}
	}
	return s
}

// WithExempt returns the set with other exempt addresses: those of the argument that the set lists.
func (s *DenySet) WithExempt(addresses []netip.Addr) *DenySet {
	var exempt []netip.Addr
	for _, a := range addresses {
		if _, ok := s.Covering(a); ok {
			exempt = append(exempt, a)
		}
	}
	slices.SortFunc(exempt, netip.Addr.Compare)
	exempt = slices.Compact(exempt)
	if slices.Equal(exempt, s.Exempt) {
		return s
	}
	return &DenySet{Lists: s.Lists, Prefixes: s.Prefixes, Exempt: exempt}
}

// Covering returns the prefix of the set that contains an address, exempt or not.
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

// Denies reports whether packets from an address are dropped.
func (s *DenySet) Denies(a netip.Addr) bool {
	_, listed := s.Covering(a)
	_, exempt := slices.BinarySearchFunc(s.Exempt, a, netip.Addr.Compare)
	return listed && !exempt
}

// Listing names the entries that contain an address, and their lists, as in "192.0.2.7 of DenyList a".
func (s *DenySet) Listing(a netip.Addr) (all []string) {
	for _, l := range s.Lists {
		for _, p := range l.Entries {
			if p.Contains(a) {
				all = append(all, EntryText(p)+" of "+l.Origin().String())
			}
		}
	}
	return all
}

// EntryText returns an entry as people write it: without the prefix length if it is a single address.
func EntryText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// InexactEntries returns the entries that are not enforced exactly because they contain an exempt address. whose
// names the owner of the address, as in "of node a".
func (s *DenySet) InexactEntries(a netip.Addr, whose string) []Unsupported {
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
