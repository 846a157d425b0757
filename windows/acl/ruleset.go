// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// Programme is what HNS holds, or should hold, for the endpoints of a node.
type Programme struct {
	// Lists are the ACLs of every endpoint, in order of priority, Host rules
	// last. Not to be modified: endpoints may share one.
	Lists map[model.EndpointID][]hns.ACL
	// Sets are the members of every set by its id, ascending, all of one
	// family. Not to be modified.
	Sets map[string][]netip.Addr
}

// setPrefix starts the ids of all sets that this package makes.
const setPrefix = "isthmus-"

// OwnSet reports whether the id is of a set that this package made.
func OwnSet(id string) bool {
	_, _, ok := parseSetID(id)
	return ok
}

// chunk is a part of a set that is too large for one: the addresses whose hash
// gives number modulo of. Whole sets have of = 1.
type chunk struct{ number, of int }

// setID names a set: a hash of what its rule says, the family, the chunk.
func setID(hash string, family int, c chunk) string {
	id := fmt.Sprintf("%s%s-v%d", setPrefix, hash, [2]int{4, 6}[family])
	if c.of > 1 {
		id += fmt.Sprintf("-%dof%d", c.number, c.of)
	}
	return id
}

// parseSetID is the inverse of setID, without the hash.
func parseSetID(id string) (family int, c chunk, ok bool) {
	rest, ok := strings.CutPrefix(id, setPrefix)
	if !ok {
		return 0, chunk{}, false
	}
	parts := strings.Split(rest, "-")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] != "v4" && parts[1] != "v6" {
		return 0, chunk{}, false
	}
	if parts[1] == "v6" {
		family = 1
	}
	c = chunk{0, 1}
	if len(parts) == 3 {
		n, of, found := strings.Cut(parts[2], "of")
		var err1, err2 error
		c.number, err1 = strconv.Atoi(n)
		c.of, err2 = strconv.Atoi(of)
		if !found || err1 != nil || err2 != nil || c.of < 2 || c.number < 0 || c.number >= c.of {
			return 0, chunk{}, false
		}
	}
	return family, c, true
}

// has reports whether an address belongs to the chunk.
func (c chunk) has(a netip.Addr) bool {
	if c.of == 1 {
		return true
	}
	h := uint32(2166136261) // FNV-1a
	for _, b := range a.AsSlice() {
		h = (h ^ uint32(b)) * 16777619
	}
	return int((h^h>>16)%uint32(c.of)) == c.number
}

// chunks divides addresses into parts of at most limit members. The number of
// parts is a power of two, so that it seldom changes.
func chunks(addrs []netip.Addr, limit int) map[chunk][]netip.Addr {
	for of := 1; ; of *= 2 {
		parts := make(map[chunk][]netip.Addr, of)
		largest := 0
		for n := range of {
			parts[chunk{n, of}] = nil
		}
		for _, a := range addrs {
			for n := range of {
				if c := (chunk{n, of}); c.has(a) {
					parts[c] = append(parts[c], a)
					largest = max(largest, len(parts[c]))
					break
				}
			}
		}
		if largest <= limit {
			return parts
		}
	}
}

// nobody stands in an empty set: an address that no packet on a pod's port has.
// An empty set might match everything.
var nobody = [2]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}

// EncodeSet writes a set as HNS reads it.
func EncodeSet(id string, members []netip.Addr) hns.SetPolicy {
	family, _, _ := parseSetID(id)
	if len(members) == 0 {
		members = []netip.Addr{nobody[family]}
	}
	var b strings.Builder
	for i, a := range members {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(a.String())
	}
	return hns.SetPolicy{ID: id, Name: id, PolicyType: hns.IPSet, Values: b.String()}
}

// DecodeSet reads a set that HNS holds. What EncodeSet does not write is an
// error: prefixes, and nothing at all.
func DecodeSet(s hns.SetPolicy) ([]netip.Addr, error) {
	list, err := hns.ParseAddresses(s.Values)
	if err != nil {
		return nil, fmt.Errorf("set %q: %w", s.ID, err)
	}
	if s.Values == "" {
		return nil, fmt.Errorf("set %q: nothing in it; an empty set might match everything", s.ID)
	}
	if len(list.Sets) > 0 {
		return nil, fmt.Errorf("set %q: %q is no address", s.ID, list.Sets[0])
	}
	var members []netip.Addr
	for _, p := range list.Prefixes {
		if !p.IsSingleIP() {
			return nil, fmt.Errorf("set %q: prefix %s among the addresses", s.ID, p)
		}
		if p.Addr() != nobody[version(p.Addr())] {
			members = append(members, p.Addr())
		}
	}
	slices.SortFunc(members, netip.Addr.Compare)
	return slices.Compact(members), nil
}

// setOf returns the id of our set that an ACL refers to, or "".
func setOf(a hns.ACL) string {
	for _, text := range []string{a.LocalAddresses, a.RemoteAddresses} {
		if OwnSet(text) {
			return text
		}
	}
	return ""
}

// setsOf returns the ids of the sets that a list refers to, ascending.
func setsOf(list []hns.ACL) []string {
	var ids []string
	for _, a := range list {
		if id := setOf(a); id != "" {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// RefersTo reports whether a list names a set.
func RefersTo(list []hns.ACL, set string) bool {
	return slices.ContainsFunc(list, func(a hns.ACL) bool { return a.LocalAddresses == set || a.RemoteAddresses == set })
}

// Equal reports whether two lists say the same with the same rules. Ids are for
// people and do not count, nor does how HNS spells what it was given.
func Equal(a, b []hns.ACL) bool {
	return slices.EqualFunc(a, b, func(x, y hns.ACL) bool {
		x, y = x.Normal(), y.Normal()
		x.ID, y.ID = "", ""
		return x == y
	})
}

// DenyAll is the list of an endpoint that nothing is known about: nothing
// passes in either direction.
func DenyAll() []hns.ACL {
	return []hns.ACL{
		{ID: "in default block", Protocols: protocolText(nil), Action: hns.Block, Direction: hns.In, RuleType: hns.Switch, Priority: firstPriority},
		{ID: "out default block", Protocols: protocolText(nil), Action: hns.Block, Direction: hns.Out, RuleType: hns.Switch, Priority: firstPriority + 1},
		hostRule(hns.In), hostRule(hns.Out),
	}
}

// hostRule opens the Windows Firewall of the pod, so that only Switch rules
// decide. It needs no priority on any HNS that is supported.
func hostRule(d hns.Direction) hns.ACL {
	return hns.ACL{ID: strings.ToLower(string(d)) + " host", Protocols: protocolText(nil), Action: hns.Allow, Direction: d, RuleType: hns.Host}
}
