// SPDX-License-Identifier: Apache-2.0

package acl_test

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// FuzzDecodeSet checks that an accepted set has the same members after encoding and decoding.
func FuzzDecodeSet(f *testing.F) {
	for _, values := range []string{"10.0.0.1", "10.0.0.2,10.0.0.1,10.0.0.2", "fd00::1,10.0.0.1", "127.0.0.1", "::1", "", ",", "10.0.0.0/8", "pods", "10.0.0.01", "::ffff:10.0.0.1", "fe80::1%1"} {
		f.Add("isthmus-00ff-v4", values)
		f.Add("isthmus-00ff-v6-1of2", values)
	}
	f.Add("isthmus--v4-9of2", "10.0.0.1")
	f.Fuzz(func(t *testing.T, id, values string) {
		members, err := acl.DecodeSet(hns.SetPolicy{ID: id, PolicyType: hns.IPSet, Values: values})
		if err != nil {
			if !strings.Contains(err.Error(), "set ") {
				t.Errorf("the error does not name the set: %v", err)
			}
			return
		}
		if !slices.IsSortedFunc(members, netip.Addr.Compare) || len(slices.Compact(slices.Clone(members))) != len(members) {
			t.Errorf("%q gives %v, which is not sorted", values, members)
		}
		again, err := acl.DecodeSet(acl.EncodeSet(id, members))
		if err != nil || !slices.Equal(again, members) {
			t.Errorf("%q gives %v, which is read again as %v: %v", values, members, again, err)
		}
	})
}

// FuzzLower lowers States with random classes, prefixes, ports and rows, which no compiler would
// make. HNS must accept every list. It must give the State's verdict for every address and port,
// under every reading.
func FuzzLower(f *testing.F) {
	f.Add([]byte{})
	for seed := range 40 {
		text := make([]byte, 160)
		for i := range text {
			text[i] = byte((i*i*7 + seed*131 + i*seed*17) >> 2)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 1024 {
			return
		}
		state := arbitraryState(text)
		for _, profile := range []hns.Version{hns.Server2019, hns.Server2022} {
			o := options(profile)
			l := acl.Lower(state, o, profile.String())
			if len(l.Unsupported) > 0 {
				t.Fatalf("a small State does not fit: %v", l.Unsupported)
			}
			for id := range state.Policy.Endpoints {
				if err := acl.Check(state, id, o, &l.Ruleset, hns.Readings()...); err != nil {
					t.Errorf("hns %s: %v\n%s", profile, err, hns.FormatACLs("", l.Lists[id]))
				}
			}
		}
	})
}

// dice returns the bytes of a text, and zeros after its end.
type dice struct{ rest []byte }

func (d *dice) next() int {
	if len(d.rest) == 0 {
		return 0
	}
	b := d.rest[0]
	d.rest = d.rest[1:]
	return int(b)
}

func (d *dice) below(n int) int { return d.next() % n }

func (d *dice) port() int {
	return int(binary.BigEndian.Uint16([]byte{byte(d.next()), byte(d.next())}))
}

// addr returns one of few addresses, so that prefixes overlap.
func (d *dice) addr() netip.Addr {
	a, b := byte(d.below(4)), byte(d.below(8)*37)
	if d.below(3) == 0 {
		return netip.AddrFrom16([16]byte{0: 0xfd, 7: a, 15: b})
	}
	return netip.AddrFrom4([4]byte{10, a, a, b})
}

func arbitraryState(text []byte) *model.State {
	d := &dice{text}
	s := &model.State{Node: "node1", Policy: model.PolicyState{Endpoints: make(map[model.EndpointID]model.EndpointState), Tables: make(map[model.TableID]*model.Table)}}
	classes, width := 1+d.below(6), 1+d.below(5)
	for c := range classes {
		s.Policy.PeerClasses = append(s.Policy.PeerClasses, model.PeerClassInfo{Class: model.PeerClass(c), Kind: model.AddressKind(d.below(4))})
	}
	s.Policy.NextPeerClass = model.PeerClass(classes)
	for c := range width {
		s.Policy.PortClasses = append(s.Policy.PortClasses, model.PortClassInfo{Class: model.PortClass(c)})
	}
	addrs := make(map[netip.Addr]model.PeerClass)
	for range d.below(12) {
		addrs[d.addr()] = model.PeerClass(d.below(classes))
	}
	s.Policy.Addresses = immutable.MakeMap(addrs)
	s.Policy.Prefixes = d.prefixes(classes)
	s.Policy.Ports = d.ports(width)
	for i := range 1 + d.below(3) {
		id := model.TableID{byte(i)}
		t := &model.Table{ID: id}
		for side := range t.Sides {
			rows := make(map[model.PeerClass]*model.Row)
			for c := range classes {
				if d.below(2) == 0 {
					rows[model.PeerClass(c)] = d.row(width)
				}
			}
			t.Sides[side] = model.Side{Default: d.row(1), Rows: immutable.MakeMap(rows)}
		}
		s.Policy.Tables[id] = t
	}
	for i := range 1 + d.below(3) {
		id := model.MakeEndpointID(string(rune('a'+i)), "eth0")
		s.Policy.Endpoints[id] = model.EndpointState{IPs: []netip.Addr{d.addr()}, Table: model.TableID{byte(d.below(4))}}
	}
	return s
}

func (d *dice) prefixes(classes int) []model.PrefixClass {
	found := make(map[netip.Prefix]model.PeerClass)
	for range d.below(8) {
		a := d.addr()
		p, err := a.Prefix(d.below(a.BitLen() + 1))
		if err == nil {
			found[p] = model.PeerClass(d.below(classes))
		}
	}
	var all []model.PrefixClass
	for p, c := range found {
		all = append(all, model.PrefixClass{Prefix: p, Class: c})
	}
	slices.SortFunc(all, func(a, b model.PrefixClass) int { return model.ComparePrefixes(a.Prefix, b.Prefix) })
	return all
}

// ports returns disjoint ranges of each protocol in ascending order.
func (d *dice) ports(width int) []model.PortRange {
	var all []model.PortRange
	for _, p := range model.PortProtocols {
		var cuts []int
		for range 2 * d.below(3) {
			cuts = append(cuts, d.port())
		}
		slices.Sort(cuts)
		cuts = slices.Compact(cuts)
		for i := 0; i+1 < len(cuts); i += 2 {
			if c := d.below(width); c > 0 {
				all = append(all, model.PortRange{Protocol: p, First: uint16(cuts[i]), Last: uint16(cuts[i+1]), Class: model.PortClass(c)})
			}
		}
	}
	return all
}

func (d *dice) row(width int) *model.Row {
	r := &model.Row{}
	for range width {
		r.Cells = append(r.Cells, model.Decision{Verdict: model.Verdict(d.below(2)), Cause: &model.Cause{}})
	}
	return r
}
