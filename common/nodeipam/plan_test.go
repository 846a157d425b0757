// SPDX-License-Identifier: Apache-2.0

package nodeipam_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/nodeipam"
)

func prefixes(text string) (all []netip.Prefix) {
	for f := range strings.FieldsSeq(text) {
		all = append(all, netip.MustParsePrefix(f))
	}
	return all
}

func node(name, cidrs string, addresses ...string) nodeipam.Node {
	n := nodeipam.Node{Name: name, PodCIDRs: prefixes(cidrs)}
	for _, a := range addresses {
		n.Addresses = append(n.Addresses, netip.MustParseAddr(a))
	}
	return n
}

func config(ranges string, mask4, mask6 int, reserved string) nodeipam.Config {
	return nodeipam.Config{Ranges: prefixes(ranges), Mask4: mask4, Mask6: mask6, Reserved: prefixes(reserved)}
}

func TestPlan(t *testing.T) {
	for name, c := range map[string]struct {
		config nodeipam.Config
		nodes  []nodeipam.Node
		// want are lines "NODE RANGES" of assignments, problems parts of them.
		want     []string
		problems []string
	}{
		"one after the other": {config("10.244.0.0/16", 24, 64, ""), []nodeipam.Node{node("b", ""), node("a", "")},
			[]string{"a 10.244.0.0/24", "b 10.244.1.0/24"}, nil},
		"dual stack": {config("10.244.0.0/16 fd00:244::/48", 24, 64, ""), []nodeipam.Node{node("a", "10.244.7.0/24 fd00:244:0:9::/64"), node("b", "")},
			[]string{"b 10.244.8.0/24 fd00:244:0:a::/64"}, nil},
		"IPv6 first is IPv4 first": {config("fd00::/60 10.0.0.0/22", 24, 64, ""), []nodeipam.Node{node("a", "")},
			[]string{"a 10.0.0.0/24 fd00::/64"}, nil},
		"not what just became free": {config("10.0.0.0/22", 24, 64, ""), []nodeipam.Node{node("a", "10.0.2.0/24"), node("b", ""), node("c", "")},
			[]string{"b 10.0.3.0/24", "c 10.0.0.0/24"}, nil},
		"the next range": {config("10.0.0.0/24 10.9.0.0/16", 24, 64, ""), []nodeipam.Node{node("a", "10.0.0.0/24"), node("b", "")},
			[]string{"b 10.9.0.0/24"}, nil},
		"larger and smaller ones of others": {config("10.0.0.0/22", 24, 64, ""), []nodeipam.Node{node("a", "10.0.0.0/23"), node("b", "10.0.2.128/25"), node("c", "")},
			[]string{"c 10.0.3.0/24"}, nil},
		"reserved, and nodes' own addresses": {config("10.0.0.0/22", 24, 64, "10.0.0.0/24"), []nodeipam.Node{node("a", "", "10.0.1.5", "192.0.2.1", "fd00::1")},
			[]string{"a 10.0.2.0/24"}, nil},
		"full": {config("10.0.0.0/24 10.2.0.0/24", 24, 64, ""), []nodeipam.Node{node("a", ""), node("b", ""), node("c", "")},
			[]string{"a 10.0.0.0/24", "b 10.2.0.0/24"}, []string{"c: no block of /24 is free in 10.0.0.0/24, 10.2.0.0/24: give the controller another --cluster-cidr"}},
		"full of one family gives none of the other": {config("10.0.0.0/16 fd00::/64", 24, 64, ""), []nodeipam.Node{node("a", ""), node("b", "")},
			[]string{"a 10.0.0.0/24 fd00::/64"}, []string{"b: no block of /64 is free in fd00::/64"}},
		"a range that covers ours": {config("10.0.0.0/16", 24, 64, ""), []nodeipam.Node{node("a", "10.0.0.0/8"), node("b", "")},
			nil, []string{"b: no block of /24 is free"}},
		"what a node has stays": {config("10.0.0.0/16 fd00::/48", 24, 64, ""), []nodeipam.Node{node("a", "192.0.2.0/24"), {Name: "b", Unread: true}},
			nil, []string{"a: it has pod ranges, but none of IPv6, and they cannot be changed", "b: its podCIDRs cannot be read"}},
		"others gave overlapping ones": {config("10.0.0.0/16", 24, 64, ""),
			[]nodeipam.Node{node("a", "10.0.0.0/16"), node("b", "10.0.1.0/24"), node("c", "10.0.2.0/24"), node("d", "10.1.0.0/24")},
			nil, []string{"b: its pod range 10.0.1.0/24 overlaps 10.0.0.0/16 of node a", "c: its pod range 10.0.2.0/24 overlaps 10.0.0.0/16 of node a"}},
		"blocks across 64 bits": {config("fd00:0:0:0:ff00::/72", 24, 80, ""), []nodeipam.Node{node("a", "fd00::ffff:0:0:0/80"), node("b", "")},
			[]string{"b fd00::ff00:0:0:0/80"}, nil},
		"many blocks": {config("fd00::/32", 24, 64, ""), []nodeipam.Node{node("a", "fd00:0:ffff:fffe::/64"), node("b", ""), node("c", "")},
			[]string{"b fd00:0:ffff:ffff::/64", "c fd00::/64"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if err := c.config.Validate(); err != nil {
				t.Fatal(err)
			}
			p := nodeipam.MakePlan(c.config, c.nodes)
			var got []string
			for _, a := range p.Assignments {
				got = append(got, strings.Trim(fmt.Sprint(a.Node, " ", a.PodCIDRs), "]"))
			}
			for i := range got {
				got[i] = strings.Replace(got[i], "[", "", 1)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if len(p.Problems) != len(c.problems) {
				t.Fatalf("problems %+v, want %q", p.Problems, c.problems)
			}
			for i, q := range p.Problems {
				if text := q.Node + ": " + q.Text; !strings.HasPrefix(text, c.problems[i]) || q.Exhausted != strings.Contains(text, "is free") {
					t.Errorf("problem %q, exhausted %t, want %q", text, q.Exhausted, c.problems[i])
				}
			}
		})
	}
}

// TestManyAddresses checks that a node, which writes its own addresses, does not take the blocks of all others by them.
func TestManyAddresses(t *testing.T) {
	greedy := node("a", "10.244.7.0/24", "192.0.2.1")
	for i := range 256 {
		greedy.Addresses = append(greedy.Addresses, netip.AddrFrom4([4]byte{10, 244, byte(i), 1}))
	}
	p := nodeipam.MakePlan(config("10.244.0.0/16", 24, 64, ""), []nodeipam.Node{greedy, node("b", "")})
	if len(p.Assignments) != 1 || p.Assignments[0].Node != "b" || p.Usage[0].Free < 200 {
		t.Errorf("assignments %+v, %d blocks are free", p.Assignments, p.Usage[0].Free)
	}
	if len(p.Problems) != 1 || p.Problems[0].Node != "a" || p.Problems[0].Exhausted || !strings.HasPrefix(p.Problems[0].Text, "256 of its addresses are in the ranges of pods") {
		t.Errorf("problems %+v, want one about node a", p.Problems)
	}
}

func TestUsage(t *testing.T) {
	p := nodeipam.MakePlan(config("10.0.0.0/22 fd00::/62", 24, 64, "10.0.0.128/25"), []nodeipam.Node{node("a", "10.0.3.0/24 fd00::/64"), node("b", "")})
	want := []nodeipam.Usage{{Range: netip.MustParsePrefix("10.0.0.0/22"), Blocks: 4, Free: 1}, {Range: netip.MustParsePrefix("fd00::/62"), Blocks: 4, Free: 2}}
	if !reflect.DeepEqual(p.Usage, want) {
		t.Errorf("got %+v, want %+v", p.Usage, want)
	}
}

func TestValidate(t *testing.T) {
	for want, c := range map[string]nodeipam.Config{
		"give at least one":                          nodeipam.Defaults(),
		"10.0.0.1/16 has host bits set":              config("10.0.0.1/16", 24, 64, ""),
		"is smaller than the block /24 of one":       config("10.0.0.0/25", 24, 64, ""),
		"has more than 2^32 blocks of /64":           config("fd00::/16", 24, 64, ""),
		"overlap: use disjoint ranges":               config("10.0.0.0/8 10.4.0.0/16", 24, 64, ""),
		"mask /31 of a node's IPv4 block":            config("10.0.0.0/8", 31, 64, ""),
		"mask /0 of a node's IPv6 block":             config("10.0.0.0/8", 24, 0, ""),
		"reserved range 10.96.0.1/12 has host bits":  config("10.0.0.0/16", 24, 64, "10.96.0.1/12"),
		"is not valid: use an address and":           {Ranges: []netip.Prefix{{}}, Mask4: 24, Mask6: 64},
		"pod range ::ffff:10.0.0.0/112 is not valid": config("::ffff:10.0.0.0/112", 24, 64, ""),
	} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
}

// FuzzPlan adds and removes nodes, each with its assigned ranges, and checks every plan. Ranges of
// nodes never change, none overlaps a range in use, and no node waits while a block is free.
func FuzzPlan(f *testing.F) {
	f.Add(uint8(3), uint8(2), []byte{1, 2, 3, 130, 4, 5, 6, 7, 129})
	f.Add(uint8(0), uint8(8), []byte(strings.Repeat("\x01\x02\x83\x04\x05", 30)))
	f.Fuzz(func(t *testing.T, b4, b6 uint8, ops []byte) {
		c := config(fmt.Sprintf("10.0.0.0/%d fd00::/%d", 24-b4%9, 64-b6%9), 24, 64, "10.0.2.0/23")
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		have := map[string]nodeipam.Node{}
		for _, op := range ops[:min(len(ops), 64)] {
			name := fmt.Sprintf("n%03d", op&0x7f)
			if op&0x80 != 0 {
				delete(have, name)
			} else if _, ok := have[name]; !ok {
				n := nodeipam.Node{Name: name, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, op, 1})}}
				if op%11 == 0 { // another component assigned a range
					n.PodCIDRs = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, op &^ 3, 0}), 22)}
				}
				have[name] = n
			}
			check(t, c, have)
		}
	})
}

func check(t *testing.T, c nodeipam.Config, have map[string]nodeipam.Node) {
	t.Helper()
	var nodes []nodeipam.Node
	for _, n := range have {
		nodes = append(nodes, n)
	}
	p := nodeipam.MakePlan(c, nodes)
	slices.Reverse(nodes)
	if again := nodeipam.MakePlan(c, nodes); !reflect.DeepEqual(p, again) {
		t.Fatalf("the order of nodes counts: %+v, %+v", p, again)
	}
	var taken []netip.Prefix
	taken = append(taken, c.Reserved...)
	for _, n := range nodes {
		taken = append(taken, n.PodCIDRs...)
		for _, a := range n.Addresses {
			taken = append(taken, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	for _, a := range p.Assignments {
		n := have[a.Node]
		if len(n.PodCIDRs) > 0 || len(a.PodCIDRs) != 2 || a.PodCIDRs[0].Bits() != 24 || a.PodCIDRs[1].Bits() != 64 {
			t.Fatalf("%s with %v gets %v", a.Node, n.PodCIDRs, a.PodCIDRs)
		}
		for i, x := range a.PodCIDRs {
			if !c.Ranges[i].Overlaps(x) || c.Ranges[i].Bits() > x.Bits() {
				t.Fatalf("%s is not of %s", x, c.Ranges[i])
			}
			for _, y := range taken {
				if x.Overlaps(y) {
					t.Fatalf("%s gets %s, which overlaps %s", a.Node, x, y)
				}
			}
			taken = append(taken, x)
		}
		n.PodCIDRs = a.PodCIDRs
		have[a.Node] = n
	}
	for _, q := range p.Problems {
		if q.Exhausted && free(c.Ranges[0], 24, taken) && free(c.Ranges[1], 64, taken) {
			t.Fatalf("%+v, but there is room", q)
		}
	}
}

// free searches all blocks of a range.
func free(r netip.Prefix, mask int, taken []netip.Prefix) bool {
	for i := range uint64(1) << (mask - r.Bits()) {
		var block netip.Prefix
		if r.Addr().Is4() {
			b := r.Addr().As4()
			binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])|uint32(i)<<(32-mask))
			block = netip.PrefixFrom(netip.AddrFrom4(b), mask)
		} else {
			b := r.Addr().As16()
			binary.BigEndian.PutUint64(b[:8], binary.BigEndian.Uint64(b[:8])|i<<(64-mask))
			block = netip.PrefixFrom(netip.AddrFrom16(b), mask)
		}
		if !slices.ContainsFunc(taken, block.Overlaps) {
			return true
		}
	}
	return false
}
