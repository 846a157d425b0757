// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

// Deny lists reach the State. Addresses of nodes are exempt, also as nodes are added and
// removed. Unchanged parts are shared.
func TestDenyListsAreCompiled(t *testing.T) {
	lists := immutable.MakeMap(map[string]*model.DenyList{
		"b": {Name: "b", Entries: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8::/32")}},
		"a": {Name: "a", Entries: []netip.Prefix{netip.MustParsePrefix("198.51.100.128/25"), netip.MustParsePrefix("192.0.2.7/32")}},
	})
	cluster := func(lists immutable.Map[string, *model.DenyList], addresses ...string) Input {
		n := &model.Node{Name: "n", OS: model.Linux}
		for _, a := range addresses {
			n.Addresses = append(n.Addresses, netip.MustParseAddr(a))
		}
		s := model.MakeSnapshot(nil, []*model.Node{n}, nil, nil)
		s.DenyLists = lists
		return Input{Snapshot: s, Node: "n"}
	}
	c := New()
	s, unsupported := c.Compile(cluster(lists, "203.0.113.1"))
	if got := s.Deny.Prefixes; len(got) != 3 || got[0].String() != "192.0.2.7/32" || got[1].String() != "198.51.100.0/24" {
		t.Errorf("prefixes %v", got)
	}
	if len(s.Deny.Exempt)+len(unsupported) > 0 {
		t.Errorf("exempt %v, reported %v", s.Deny.Exempt, unsupported)
	}
	same, _ := c.Compile(cluster(lists, "203.0.113.1", "203.0.113.2"))
	if same.Deny != s.Deny {
		t.Error("another set for the same lists")
	}
	s, unsupported = c.Compile(cluster(lists, "198.51.100.200"))
	a := netip.MustParseAddr("198.51.100.200")
	if s.Deny.Denies(a) || !s.Deny.Denies(a.Next()) || !s.Deny.Denies(netip.MustParseAddr("2001:db8::1")) || s.Deny.Denies(netip.MustParseAddr("192.0.2.8")) {
		t.Errorf("set %+v", s.Deny)
	}
	if len(unsupported) != 2 || !strings.Contains(unsupported[0].String(), "DenyList a: entry 198.51.100.128/25") ||
		!strings.Contains(unsupported[1].String(), "198.51.100.200 is an address of node n and is not denied") {
		t.Errorf("reported %v", unsupported)
	}
	if s, unsupported = c.Compile(cluster(immutable.Map[string, *model.DenyList]{}, "198.51.100.200")); s.Deny != nil || len(unsupported) > 0 {
		t.Errorf("without lists: %+v, reported %v", s.Deny, unsupported)
	}
}
