// SPDX-License-Identifier: Apache-2.0

package denymap

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

func set(entries ...netip.Prefix) *model.DenySet {
	l := &model.DenyList{Name: "a", Entries: entries}
	return model.MakeDenySet(immutable.MakeMap(map[string]*model.DenyList{"a": l}))
}

// random returns prefixes and addresses in a small part of the address space, so that they
// overlap.
func random(r *rand.Rand) (*model.DenySet, []netip.Addr) {
	address := func() netip.Addr {
		if r.IntN(2) == 0 {
			return netip.AddrFrom4([4]byte{10, byte(r.IntN(2)), byte(r.IntN(3)), byte(r.IntN(8))})
		}
		return netip.AddrFrom16([16]byte{0x20, byte(r.IntN(2)), byte(r.IntN(2)), 0, 0, byte(r.IntN(2)), 15: byte(r.IntN(8))})
	}
	var entries []netip.Prefix
	for range r.IntN(12) {
		a := address()
		bits := a.BitLen() - r.IntN(4)
		if r.IntN(3) == 0 {
			bits = 5 + r.IntN(a.BitLen()-5)
		}
		entries = append(entries, netip.PrefixFrom(a, bits).Masked())
	}
	var exempt []netip.Addr
	for range r.IntN(4) {
		exempt = append(exempt, address())
	}
	s := set(entries...)
	return s.WithExempt(exempt), exempt
}

func sample(r *rand.Rand) netip.Addr {
	if r.IntN(2) == 0 {
		return netip.AddrFrom4([4]byte{byte(8 + r.IntN(4)), byte(r.IntN(2)), byte(r.IntN(3)), byte(r.IntN(9))})
	}
	return netip.AddrFrom16([16]byte{0x20, byte(r.IntN(2)), byte(r.IntN(2)), 0, 0, byte(r.IntN(2)), 15: byte(r.IntN(9))})
}

// The maps give the verdicts of the set. After every single write of a change, an address that
// both sets deny is denied, and one that neither denies passes.
func TestEveryWriteOfAChange(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	from, was := NewEntries(), set()
	denied := 0
	for round := range 1500 {
		is, _ := random(r)
		to := Layout(is, nil)
		w := Diff(from, to)
		now, prefilters := Union(from, NewEntries()), Union(from, to).Prefilters()
		addresses := make([]netip.Addr, 60)
		for i := range addresses {
			addresses[i] = sample(r)
		}
		check := func() {
			t.Helper()
			for _, a := range addresses {
				if before, after := was.Denies(a), is.Denies(a); before == after && now.Lookup(prefilters, a) != after {
					t.Fatalf("round %d: %s: in between %t, before and after %t", round, a, !after, after)
				}
			}
		}
		for _, s := range w.Singles {
			now.Singles[s.Addr] = s.Action
			check()
		}
		for _, p := range w.Prefixes {
			now.Prefixes[p] = true
			check()
		}
		for _, p := range w.DropPrefixes {
			delete(now.Prefixes, p)
			check()
		}
		for _, a := range w.DropSingles {
			delete(now.Singles, a)
			check()
		}
		prefilters = to.Prefilters()
		for _, a := range addresses {
			if now.Lookup(prefilters, a) != is.Denies(a) {
				t.Fatalf("round %d: %s: the maps say %t", round, a, !is.Denies(a))
			}
			if is.Denies(a) {
				denied++
			}
		}
		if !Diff(now, to).None() {
			t.Fatalf("round %d: the writes do not lead to what is wanted", round)
		}
		from, was = to, is
	}
	if denied < 1000 {
		t.Errorf("only %d addresses were denied: the test sees nothing", denied)
	}
}

// The prefilter passes the first and last address of prefixes of every length to the lookup.
func TestPrefilterOfEveryLength(t *testing.T) {
	for _, text := range []string{"10.129.77.3", "2001:db8:aaaa:bbbb:cccc::7"} {
		a := netip.MustParseAddr(text)
		for bits := 1; bits <= a.BitLen(); bits++ {
			p := netip.PrefixFrom(a, bits).Masked()
			e := Layout(set(p), nil)
			prefilters := e.Prefilters()
			for _, in := range []netip.Addr{a, p.Addr()} {
				if !e.Lookup(prefilters, in) {
					t.Errorf("%s does not deny %s", p, in)
				}
			}
			if before := p.Addr().Prev(); before.IsValid() && before.BitLen() == a.BitLen() && e.Lookup(prefilters, before) {
				t.Errorf("%s denies %s", p, before)
			}
		}
	}
}

func TestAlsoExempt(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.0.2.1")}
	e := Layout(set(netip.MustParsePrefix("10.0.0.0/8")), own)
	if len(e.Singles) != 1 || e.Lookup(e.Prefilters(), own[0]) || !e.Lookup(e.Prefilters(), netip.MustParseAddr("10.0.0.2")) {
		t.Errorf("%+v", e)
	}
	if n := e.Count(); n != [2]int{1, 0} {
		t.Errorf("count %v", n)
	}
}

func TestFits(t *testing.T) {
	e := Layout(set(netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("10.0.0.3/32"), netip.MustParsePrefix("fd00::/64")), nil)
	if err := e.Fits(Capacity{Singles: 2, Prefixes: 1}); err != nil {
		t.Error(err)
	}
	if err := e.Fits(Capacity{Singles: 1, Prefixes: 1}); err == nil || !strings.Contains(err.Error(), "2 single IPv4 addresses, at most 1") {
		t.Error(err)
	}
	if err := e.Fits(Capacity{Singles: 2}); err == nil || !strings.Contains(err.Error(), "1 IPv6 prefixes, at most 0") {
		t.Error(err)
	}
}
