// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// mask exchanges one IPv4 address for another, by the bits in which they differ. It keeps the length of every
// prefix, and which prefixes contain which: a list whose addresses are all exchanged so gives the same verdicts.
type mask [4]byte

// exchange returns the mask that replaces one address by another.
func exchange(from, to netip.Addr) mask {
	f, t := from.As4(), to.As4()
	return mask{f[0] ^ t[0], f[1] ^ t[1], f[2] ^ t[2], f[3] ^ t[3]}
}

// address returns the other address. Those of IPv6 stay.
func (m mask) address(a netip.Addr) netip.Addr {
	if !a.Is4() {
		return a
	}
	b := a.As4()
	for i := range b {
		b[i] ^= m[i]
	}
	return netip.AddrFrom4(b)
}

// prefix returns the other prefix.
func (m mask) prefix(p netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(m.address(p.Addr()), p.Bits()).Masked()
}

// translated is a list with its sets, for one end of the packets.
type translated struct {
	list []hns.ACL
	sets []hns.SetPolicy
}

// translate exchanges the remote addresses of a list and of its sets. The sets get names of their own, because
// those of both ends are on one network. side is a digit.
func translate(list []hns.ACL, sets map[string][]netip.Addr, m mask, side int) (translated, error) {
	t := translated{list: slices.Clone(list)}
	names := make(map[string]string)
	for _, id := range slices.Sorted(maps.Keys(sets)) {
		if !acl.RefersTo(list, id) {
			continue
		}
		if len(sets[id]) == 0 {
			return translated{}, fmt.Errorf("set %s has no members", id)
		}
		family := "v6"
		if sets[id][0].Is4() {
			family = "v4"
		}
		names[id] = fmt.Sprintf("isthmus-conformance%d%d-%s", side, len(names), family)
		members := make([]netip.Addr, len(sets[id]))
		for i, a := range sets[id] {
			members[i] = m.address(a)
		}
		t.sets = append(t.sets, acl.EncodeSet(names[id], members))
	}
	for i := range t.list {
		a := &t.list[i]
		if name, ok := names[a.LocalAddresses]; ok {
			a.LocalAddresses = name
		} else if a.LocalAddresses != "" {
			return translated{}, fmt.Errorf("local addresses %q are not a set", a.LocalAddresses)
		}
		if name, ok := names[a.RemoteAddresses]; ok {
			a.RemoteAddresses = name
			continue
		}
		var err error
		if a.RemoteAddresses, err = translateText(a.RemoteAddresses, m); err != nil {
			return translated{}, err
		}
	}
	return t, nil
}

// translateText exchanges the addresses and prefixes of one member of an ACL.
func translateText(text string, m mask) (string, error) {
	if text == "" {
		return "", nil
	}
	parts := strings.Split(text, ",")
	for i, part := range parts {
		if a, err := netip.ParseAddr(part); err == nil {
			parts[i] = m.address(a).String()
			continue
		}
		p, err := netip.ParsePrefix(part)
		if err != nil {
			return "", fmt.Errorf("address %q of an ACL: %w", part, err)
		}
		parts[i] = m.prefix(p).String()
	}
	return strings.Join(parts, ","), nil
}
