// SPDX-License-Identifier: Apache-2.0

package model

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// TestPrefixClassIsLongest compares with a linear search over all prefixes.
func TestPrefixClassIsLongest(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	random := func() netip.Prefix {
		if r.IntN(3) == 0 {
			a := netip.AddrFrom16([16]byte{0x20, byte(r.IntN(2)), byte(r.IntN(4) << 5), 15: byte(r.IntN(3))})
			return netip.PrefixFrom(a, []int{0, 3, 16, 20, 64, 127, 128}[r.IntN(7)]).Masked()
		}
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(r.IntN(2)), byte(r.IntN(256)), byte(r.IntN(4))}), r.IntN(33)).Masked()
	}
	for range 300 {
		s := &PolicyState{}
		seen := map[netip.Prefix]bool{}
		for i := range r.IntN(30) {
			if p := random(); !seen[p] {
				seen[p] = true
				s.Prefixes = append(s.Prefixes, PrefixClass{p, PeerClass(i + 1)})
			}
		}
		slices.SortFunc(s.Prefixes, func(a, b PrefixClass) int { return ComparePrefixes(a.Prefix, b.Prefix) })
		for range 100 {
			p := random()
			best, want := -1, World
			for _, e := range s.Prefixes {
				if e.Prefix.Bits() > best && e.Prefix.Bits() <= p.Bits() && e.Prefix.Contains(p.Addr()) {
					best, want = e.Prefix.Bits(), e.Class
				}
			}
			if got := s.PrefixClass(p); got != want {
				t.Fatalf("%s is in class %d of %v, want %d", p, got, s.Prefixes, want)
			}
		}
	}
}

// TestRowCell checks the verdicts of a row for classes without a cell.
func TestRowCell(t *testing.T) {
	allow, deny := Decision{Verdict: Allow}, Decision{}
	for _, c := range []struct {
		cells []Decision
		class PortClass
		want  Verdict
	}{
		{nil, OtherPorts, Deny}, {nil, 7, Deny}, {nil, ClosedPorts, Deny},
		{[]Decision{allow}, OtherPorts, Allow}, {[]Decision{allow}, 7, Allow}, {[]Decision{allow}, ClosedPorts, Deny},
		{[]Decision{allow, deny}, 1, Deny}, {[]Decision{deny, allow}, 1, Allow}, {[]Decision{deny, allow}, 2, Deny}, {[]Decision{allow, deny}, 2, Allow},
	} {
		if got := (&Row{Cells: c.cells}).Cell(c.class).Verdict; got != c.want {
			t.Errorf("class %d of %v is %s, want %s", c.class, c.cells, got, c.want)
		}
	}
}
