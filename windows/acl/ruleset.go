// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// Ruleset is the ACL lists and sets of the endpoints of a node, as desired or as read from HNS.
type Ruleset struct {
	// Lists are the ACLs of every endpoint, in order of priority, Host rules last. Callers must not modify
	// them: endpoints may share one.
	Lists map[model.EndpointID][]hns.ACL
	// Sets are the members of every set by its id, ascending, all of one family. Callers must not modify
	// them.
	Sets map[string][]netip.Addr
	// Unknown are sets that hold more, or else, than Sets says.
	Unknown map[string]bool `json:"-"`
}

// setPrefix begins the ids of all sets of this package.
const setPrefix = "isthmus-"

// OwnSet reports whether the id is that of a set of this package.
func OwnSet(id string) bool {
	_, _, ok := parseSetID(id)
	return ok
}

// chunk is a part of a set that is too large for one: the addresses whose hash modulo of equals number. A
// whole set has of = 1.
type chunk struct{ number, of int }

// setID returns the id of a set: a hash of its rule's content, the family, the chunk.
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
	f := fnv.New32a()
	f.Write(a.AsSlice())
	h := f.Sum32()
	return int((h^h>>16)%uint32(c.of)) == c.number
}

// chunks divides addresses into parts of at most limit members. The number of parts is a power of two, so
// that it seldom changes.
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

// placeholder are the members of an empty set, by family: addresses that no packet on a pod's port has. An
// empty set might match everything.
var placeholder = [2]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}

// EncodeSet returns a set in the form of HNS.
func EncodeSet(id string, members []netip.Addr) hns.SetPolicy {
	family, _, _ := parseSetID(id)
	if len(members) == 0 {
		members = []netip.Addr{placeholder[family]}
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

// DecodeSet parses a set that HNS holds. Content that EncodeSet does not write is an error: prefixes,
// an empty list, and sets of sets.
func DecodeSet(s hns.SetPolicy) ([]netip.Addr, error) {
	if !strings.EqualFold(s.PolicyType, hns.IPSet) {
		return nil, fmt.Errorf("set %q: its type is %q", s.ID, s.PolicyType)
	}
	list, err := hns.ParseAddresses(s.Values)
	if err != nil {
		return nil, fmt.Errorf("set %q: %w", s.ID, err)
	}
	if s.Values == "" {
		return nil, fmt.Errorf("set %q: is empty; an empty set might match everything", s.ID)
	}
	if len(list.Sets) > 0 {
		return nil, fmt.Errorf("set %q: %q is not an address", s.ID, list.Sets[0])
	}
	var members []netip.Addr
	for _, p := range list.Prefixes {
		if !p.IsSingleIP() {
			return nil, fmt.Errorf("set %q: prefix %s among the addresses", s.ID, p)
		}
		if p.Addr() != placeholder[version(p.Addr())] {
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

// RefersTo reports whether a list refers to a set.
func RefersTo(list []hns.ACL, set string) bool {
	return set != "" && slices.ContainsFunc(list, func(a hns.ACL) bool { return a.LocalAddresses == set || a.RemoteAddresses == set })
}

// Equal reports whether two lists have the same rules. It ignores ids, which are for people, and the
// spelling of HNS, also that of addresses. It also ignores the order of rules and addresses: priorities decide,
// and opposite rules of these lists share none.
func Equal(a, b []hns.ACL) bool {
	same := func(x, y hns.ACL) bool { return compared(x) == compared(y) }
	return slices.EqualFunc(a, b, same) || len(a) == len(b) && slices.EqualFunc(ordered(a), ordered(b), same)
}

// compared returns an ACL without what does not matter. The Host rules of these lists are one for each direction, so that their
// priorities decide nothing: they are written without, and HNS may choose some.
func compared(a hns.ACL) hns.ACL {
	a = a.Normal()
	a.ID = ""
	if a.RuleType == hns.Host {
		a.Priority = 0
	}
	return a
}

// ordered returns a list in one order of its rules and of their addresses, and in one spelling.
func ordered(list []hns.ACL) []hns.ACL {
	list = slices.Clone(list)
	for i, a := range list {
		a = compared(a)
		a.LocalAddresses, a.RemoteAddresses = hns.NormalAddresses(a.LocalAddresses), hns.NormalAddresses(a.RemoteAddresses)
		list[i] = a
	}
	slices.SortFunc(list, func(x, y hns.ACL) int {
		return cmp.Or(cmp.Compare(x.RuleType, y.RuleType), cmp.Compare(x.Direction, y.Direction), cmp.Compare(x.Priority, y.Priority),
			cmp.Compare(x.Action, y.Action),
			cmp.Compare(x.Protocols, y.Protocols), cmp.Compare(x.LocalPorts, y.LocalPorts), cmp.Compare(x.RemotePorts, y.RemotePorts),
			cmp.Compare(x.RemoteAddresses, y.RemoteAddresses), cmp.Compare(x.LocalAddresses, y.LocalAddresses))
	})
	return list
}

// DenyAll returns the list of an endpoint without a known table: it denies all traffic in both directions.
func DenyAll() []hns.ACL {
	return []hns.ACL{
		{ID: "in default block", Protocols: protocolText(nil), Action: hns.Block, Direction: hns.In, RuleType: hns.Switch, Priority: firstPriority},
		{ID: "out default block", Protocols: protocolText(nil), Action: hns.Block, Direction: hns.Out, RuleType: hns.Switch, Priority: firstPriority + 1},
		hostRule(hns.In), hostRule(hns.Out),
	}
}

// hostRule opens the Windows Firewall of the pod, so that only Switch rules decide. It needs no priority on
// any supported HNS.
func hostRule(d hns.Direction) hns.ACL {
	return hns.ACL{ID: strings.ToLower(string(d)) + " host", Protocols: protocolText(nil), Action: hns.Allow, Direction: d, RuleType: hns.Host}
}
