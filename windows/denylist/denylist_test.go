// SPDX-License-Identifier: Apache-2.0

package denylist

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

func setOf(t *testing.T, texts ...string) *model.DenySet {
	l := &model.DenyList{Name: "l"}
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			t.Fatal(err)
		}
		l.Entries = append(l.Entries, p)
	}
	return model.MakeDenySet(immutable.MakeMap(map[string]*model.DenyList{"l": l}))
}

func apply(t *testing.T, d *DenyList, set *model.DenySet) []model.Unsupported {
	t.Helper()
	u, err := d.Apply(context.Background(), &model.State{Deny: set})
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestACLs(t *testing.T) {
	node := []netip.Addr{netip.MustParseAddr("192.0.2.5")}
	d := New(node, false)
	set := setOf(t, "192.0.2.4/30", "198.51.100.7/32", "2001:db8::/32").WithExempt([]netip.Addr{netip.MustParseAddr("2001:db8::1")})
	u := apply(t, d, set)
	if len(u) != 1 || u[0].Policy.String() != "DenyList l" || u[0].Effect != model.Refused || !strings.Contains(u[0].Reason, "not the host") {
		t.Errorf("reported %v", u)
	}
	list := d.ACLs()
	if len(list) != 2 || list[0].RemoteAddresses != "192.0.2.4,192.0.2.6/31,198.51.100.7" || !strings.HasPrefix(list[1].RemoteAddresses, "2001:db8::,2001:db8::2/127,") {
		t.Fatalf("got %+v", list)
	}
	for i, a := range list {
		if a.Action != hns.Block || a.Direction != hns.In || a.RuleType != hns.Switch || a.Protocols != "256" || a.Priority != uint16(100+i) {
			t.Errorf("%+v", a)
		}
	}
	var c dataplane.Counters
	if err := d.Count(&c); err != nil || c.Deny.Entries[0] != 3 || c.Deny.Entries[1] == 0 {
		t.Errorf("%+v, %v", c.Deny, err)
	}
	if len(apply(t, d, set)) != 1 {
		t.Error("the report of an unchanged set is lost")
	}
	if u := apply(t, d, nil); len(u)+len(d.ACLs()) > 0 {
		t.Errorf("without lists: %v, %v", u, d.ACLs())
	}
	d = New(nil, true)
	apply(t, d, set)
	if list := d.ACLs(); len(list) != 1 || strings.Contains(list[0].RemoteAddresses, ":") {
		t.Errorf("without IPv6: %+v", list)
	}
}

// TestLimit checks that too many ranges are reported, and that as many as possible are enforced.
func TestLimit(t *testing.T) {
	var texts []string
	for i := range 9000 {
		a := netip.AddrFrom4([4]byte{198, byte(18 + i>>15), byte(i >> 7), byte(2 * i)})
		texts = append(texts, netip.PrefixFrom(a, 32).String())
	}
	d := New(nil, false)
	u := apply(t, d, setOf(t, texts...))
	if list := d.ACLs(); len(list) != 2 || strings.Count(list[1].RemoteAddresses, ",") != 3999 || len(u) != 1 || !strings.Contains(u[0].Reason, "9000 ranges, of which the first 8000 are enforced") {
		t.Errorf("%d ACLs, %v", len(list), u)
	}
}

func TestSplit(t *testing.T) {
	d := New(nil, false)
	apply(t, d, setOf(t, "192.0.2.0/24", "2001:db8::/32"))
	deny, rest := Split(append(d.ACLs(), acl.DenyAll()...))
	if !acl.Equal(deny, d.ACLs()) || !acl.Equal(rest, acl.DenyAll()) {
		t.Errorf("%v and %v", deny, rest)
	}
	if !acl.WellFormed(append(d.ACLs(), acl.DenyAll()...)) {
		t.Error("a list with them does not count as well-formed")
	}
}

// FuzzACLs checks that the ACLs match exactly the addresses that the set denies.
func FuzzACLs(f *testing.F) {
	f.Add([]byte{192, 0, 2, 0, 24, 192, 0, 2, 7, 32}, uint32(0xC0000207), uint32(0xC0000208))
	f.Fuzz(func(t *testing.T, raw []byte, at, exempt uint32) {
		var texts []string
		for ; len(raw) >= 5 && len(texts) < 20; raw = raw[5:] {
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte(raw[:4])), int(raw[4]%32)+1).Masked()
			texts = append(texts, p.String())
		}
		addr := func(n uint32) netip.Addr { return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n))) }
		d := New([]netip.Addr{addr(exempt)}, false)
		set := setOf(t, texts...)
		apply(t, d, set)
		matches := false
		for _, a := range d.ACLs() {
			for text := range strings.SplitSeq(a.RemoteAddresses, ",") {
				p, err := netip.ParsePrefix(text)
				if err != nil {
					p = netip.PrefixFrom(netip.MustParseAddr(text), 32)
				}
				if p != p.Masked() {
					t.Errorf("%s has host bits", p)
				}
				matches = matches || p.Contains(addr(at))
			}
		}
		if want := set.Denies(addr(at)) && at != exempt; matches != want {
			t.Error(fmt.Sprint(texts, addr(at), addr(exempt), " matches: ", matches))
		}
	})
}
