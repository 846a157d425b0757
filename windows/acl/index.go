// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// index holds the common data of all tables of a State: the addresses, divided into parts that no table
// distinguishes.
type index struct {
	state    *model.State
	options  Options
	cells    []cell
	all      cellSet                    // every cell
	ports    map[model.Protocol]cellSet // the cells of a protocol with ports
	kinds    map[model.PeerClass]model.AddressKind
	families [2]family // IPv4, IPv6
}

// family holds the addresses of one IP version.
type family struct {
	// prefixes are the listed prefixes and the whole range, which is always first; a prefix comes after
	// those that contain it.
	prefixes   []prefixNode
	addrGroups []addressGroup
	// node are the addresses of this node in no addressGroup.
	node []netip.Addr
}

// prefixNode is a prefix and the class of its addresses that no longer prefix contains.
type prefixNode struct {
	prefix netip.Prefix
	class  model.PeerClass
	parent int // index of the longest prefix that contains it; -1 for the whole range
}

// addressGroup is the single addresses of one class within one longest prefix.
type addressGroup struct {
	class model.PeerClass
	cover int // index of the longest prefix
	addrs []netip.Addr
}

func newIndex(s *model.State, o Options) *index {
	x := &index{state: s, options: o, cells: portCells(s), kinds: make(map[model.PeerClass]model.AddressKind), ports: make(map[model.Protocol]cellSet)}
	x.all = newCellSet(len(x.cells))
	for _, p := range model.PortProtocols {
		x.ports[p] = newCellSet(len(x.cells))
	}
	for i, c := range x.cells {
		x.all.add(i)
		if i > 0 {
			x.ports[c.protocol].add(i)
		}
	}
	for _, info := range s.Policy.PeerClasses {
		x.kinds[info.Class] = info.Kind
	}
	for v := range x.families {
		x.families[v] = newFamily(s, v == 1)
	}
	for _, a := range o.Node {
		if _, ok := s.Policy.Addresses.Get(a); !ok {
			f := &x.families[version(a)]
			f.node = append(f.node, a)
		}
	}
	for v := range x.families {
		slices.SortFunc(x.families[v].node, netip.Addr.Compare)
		x.families[v].node = slices.Compact(x.families[v].node)
	}
	return x
}

// version returns the index of an address's family.
func version(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

var whole = [2]netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}

func newFamily(s *model.State, v6 bool) family {
	v := 0
	if v6 {
		v = 1
	}
	f := family{prefixes: []prefixNode{{prefix: whole[v], class: model.World, parent: -1}}}
	listed := slices.SortedFunc(slices.Values(s.Policy.Prefixes), func(a, b model.PrefixClass) int { return model.ComparePrefixes(a.Prefix, b.Prefix) })
	byPrefix := map[netip.Prefix]int{whole[v]: 0}
	lengths := []int{0}
	for _, e := range listed {
		switch {
		case e.Prefix.Addr().Is6() != v6:
		case e.Prefix.Bits() == 0:
			f.prefixes[0].class = e.Class
		default:
			byPrefix[e.Prefix] = len(f.prefixes)
			f.prefixes = append(f.prefixes, prefixNode{prefix: e.Prefix, class: e.Class})
			if !slices.Contains(lengths, e.Prefix.Bits()) {
				lengths = append(lengths, e.Prefix.Bits())
			}
		}
	}
	slices.SortFunc(lengths, func(a, b int) int { return b - a })
	longest := func(a netip.Addr, below int) int {
		for _, bits := range lengths {
			if bits >= below {
				continue
			}
			if p, err := a.Prefix(bits); err == nil {
				if i, ok := byPrefix[p]; ok {
					return i
				}
			}
		}
		return 0
	}
	for i := range f.prefixes[1:] {
		p := f.prefixes[i+1].prefix
		f.prefixes[i+1].parent = longest(p.Addr(), p.Bits())
	}
	f.addrGroups = newAddressGroups(s, v6, func(a netip.Addr) int { return longest(a, a.BitLen()+1) })
	return f
}

func newAddressGroups(s *model.State, v6 bool, cover func(netip.Addr) int) []addressGroup {
	type key struct {
		class model.PeerClass
		cover int
	}
	found := make(map[key][]netip.Addr)
	for a, class := range s.Policy.Addresses.All() {
		if a.Is6() == v6 {
			k := key{class, cover(a)}
			found[k] = append(found[k], a)
		}
	}
	addrGroups := make([]addressGroup, 0, len(found))
	for k, addrs := range found {
		slices.SortFunc(addrs, netip.Addr.Compare)
		addrGroups = append(addrGroups, addressGroup{k.class, k.cover, addrs})
	}
	slices.SortFunc(addrGroups, func(a, b addressGroup) int {
		return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.cover, b.cover))
	})
	return addrGroups
}

// encloses reports whether prefix i equals or contains j.
func (f *family) encloses(i, j int) bool {
	a, b := f.prefixes[i].prefix, f.prefixes[j].prefix
	return a.Bits() <= b.Bits() && a.Contains(b.Addr())
}
