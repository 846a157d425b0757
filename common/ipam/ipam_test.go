// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/ipam"
)

var t0 = time.Unix(1_000_000, 0)

func prefixes(s ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range s {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func newAllocator(t *testing.T, reserved []uint64, ranges ...string) *ipam.Allocator {
	t.Helper()
	a, err := ipam.New(ipam.Config{Prefixes: prefixes(ranges...), Reserved: reserved, Quarantine: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		name     string
		prefixes []netip.Prefix
		reserved []uint64
		want     string // substring of the error; empty if there is none
	}{
		{"one", prefixes("10.0.0.0/24"), nil, ""},
		{"both families", prefixes("10.0.0.0/24", "fd00:1::/64"), nil, ""},
		{"smallest", prefixes("10.0.0.0/30"), nil, ""},
		{"smallest on windows", prefixes("10.0.0.0/29"), []uint64{2}, ""},
		{"whole of ipv6", prefixes("::/0"), nil, ""},
		{"none", nil, nil, "no pod range: give the node at least one"},
		{"zero", []netip.Prefix{{}}, nil, "pod range is not a prefix: write it as ADDRESS/BITS"},
		{"host bits", prefixes("10.0.0.7/24"), nil, "pod range 10.0.0.7/24 has host bits set: write 10.0.0.0/24"},
		{"mapped", prefixes("::ffff:10.0.0.0/120"), nil, "write it as IPv4"},
		{"one address", prefixes("10.0.0.0/32"), nil, "pod range 10.0.0.0/32 is too small, all of its addresses are reserved: use /30 or shorter"},
		{"too small", prefixes("10.0.0.0/31"), nil, "use /30 or shorter"},
		{"too small on windows", prefixes("10.0.0.0/30"), []uint64{2}, "use /29 or shorter"},
		{"twice", prefixes("10.0.0.0/24", "10.0.0.0/24"), nil, "pod range 10.0.0.0/24 is listed twice: remove one"},
		{"overlap", prefixes("10.0.0.0/16", "10.0.3.0/24"), nil, "pod ranges 10.0.0.0/16 and 10.0.3.0/24 overlap: use disjoint ranges"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ipam.New(ipam.Config{Prefixes: c.prefixes, Reserved: c.reserved})
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	err := ipam.Config{Prefixes: prefixes("10.0.0.1/24", "10.1.0.0/31"), Quarantine: -1}.Validate()
	if n := len(strings.Split(fmt.Sprint(err), "\n")); n != 3 {
		t.Errorf("want all 3 problems at once, got %v", err)
	}
}

func TestReservedAddresses(t *testing.T) {
	for _, c := range []struct {
		pool     string
		reserved []uint64
		keepLast bool
		want     string
	}{
		{"10.0.0.0/29", nil, false, "10.0.0.2 10.0.0.3 10.0.0.4 10.0.0.5 10.0.0.6"},
		{"10.0.0.0/29", []uint64{2}, false, "10.0.0.3 10.0.0.4 10.0.0.5 10.0.0.6"},
		{"10.0.0.0/29", []uint64{2}, true, "10.0.0.3 10.0.0.4 10.0.0.5"},
		{"fd00::/125", nil, true, "fd00::2 fd00::3 fd00::4 fd00::5 fd00::6 fd00::7"},
		{"10.0.1.0/30", nil, false, "10.0.1.2"},
	} {
		a, err := ipam.New(ipam.Config{Prefixes: prefixes(c.pool), Reserved: c.reserved, KeepLast: c.keepLast, Quarantine: 30 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for i := 0; ; i++ {
			ips, err := a.Allocate(fmt.Sprint(i), t0)
			if err != nil {
				break
			}
			got = append(got, ips[0].String())
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s %v: gave %s, want %s", c.pool, c.reserved, s, c.want)
		}
	}
}

func TestDualStackIsAllOrNothing(t *testing.T) {
	a := newAllocator(t, nil, "10.0.0.0/30", "fd00::/64")
	ips, err := a.Allocate("a", t0)
	if err != nil || !slices.Equal(ips, []netip.Addr{addr("10.0.0.2"), addr("fd00::2")}) {
		t.Fatalf("got %v, %v", ips, err)
	}
	again, err := a.Allocate("a", t0)
	if err != nil || !slices.Equal(again, ips) {
		t.Fatalf("the second time: %v, %v", again, err)
	}
	_, err = a.Allocate("b", t0)
	var full *ipam.ExhaustedError
	if !errors.As(err, &full) || full.Used != 1 || full.Quarantined != 0 || full.Pools[0] != netip.MustParsePrefix("10.0.0.0/30") {
		t.Fatalf("got %v", err)
	}
	if _, ok := a.Owner(addr("fd00::3")); ok {
		t.Error("an IPv6 address was kept although there was no IPv4 address")
	}
	want := "no free address in 10.0.0.0/30: 1 used, 0 in quarantine"
	if !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %q, want %q...", err, want)
	}
}

func TestQuarantine(t *testing.T) {
	a := newAllocator(t, nil, "10.0.0.0/30")
	if _, err := a.Allocate("a", t0); err != nil {
		t.Fatal(err)
	}
	a.Release(addr("10.0.0.2"), t0)
	if _, err := a.Allocate("b", t0.Add(30*time.Second-1)); err == nil {
		t.Error("address was given out in quarantine")
	}
	if u := a.Usage(t0)[0]; u.Used != 0 || u.Quarantined != 1 || u.Free != 0 {
		t.Errorf("usage %+v", u)
	}
	if ips, err := a.Allocate("b", t0.Add(30*time.Second)); err != nil || ips[0] != addr("10.0.0.2") {
		t.Errorf("got %v, %v after the quarantine", ips, err)
	}
	a.Cancel(addr("10.0.0.2"))
	if _, err := a.Allocate("c", t0.Add(30*time.Second)); err != nil {
		t.Errorf("a cancelled address is not free: %v", err)
	}
}

// TestQuarantineIsNotShortened checks that the latest of several releases counts, in any order of
// the calls. Two tombstones may name one address.
func TestQuarantineIsNotShortened(t *testing.T) {
	for _, order := range [][]time.Duration{{0, -20 * time.Second}, {-20 * time.Second, 0}, {0, -20 * time.Second, -time.Hour}} {
		a := newAllocator(t, nil, "10.0.0.0/30")
		for _, at := range order {
			a.Release(addr("10.0.0.2"), t0.Add(at))
		}
		if _, err := a.Allocate("b", t0.Add(30*time.Second-1)); err == nil {
			t.Errorf("released at %v: the address was given out before the latest quarantine ends", order)
		}
		if u := a.Usage(t0)[0]; u.Quarantined != 1 {
			t.Errorf("released at %v: usage %+v", order, u)
		}
		if _, err := a.Allocate("b", t0.Add(30*time.Second)); err != nil {
			t.Errorf("released at %v: %v after the quarantine", order, err)
		}
	}
}

// TestClockIsSetBack checks that an address released while the clock was ahead returns after one quarantine.
func TestClockIsSetBack(t *testing.T) {
	a := newAllocator(t, nil, "10.0.0.0/30")
	a.Release(addr("10.0.0.2"), t0.Add(24*time.Hour))
	if _, err := a.Allocate("b", t0); err == nil {
		t.Error("address was given out in quarantine")
	}
	if _, err := a.Allocate("b", t0.Add(30*time.Second-1)); err == nil {
		t.Error("address was given out before one quarantine has passed")
	}
	if ips, err := a.Allocate("b", t0.Add(30*time.Second)); err != nil || ips[0] != addr("10.0.0.2") {
		t.Errorf("got %v, %v one quarantine after the clock was set back", ips, err)
	}
}

func TestRestore(t *testing.T) {
	a := newAllocator(t, nil, "10.0.0.0/29", "fd00::/64")
	for _, r := range []struct{ a, owner string }{{"10.0.0.2", "a"}, {"fd00::2", "a"}, {"10.0.0.4", "b"}, {"192.0.2.9", "old"}, {"10.0.0.2", "a"}} {
		if err := a.Restore(addr(r.a), r.owner); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Restore(addr("10.0.0.4"), "c"); err == nil || !strings.Contains(err.Error(), "belongs to b and to c") {
		t.Errorf("got %v", err)
	}
	if ips, _ := a.Allocate("a", t0); !slices.Equal(ips, []netip.Addr{addr("10.0.0.2"), addr("fd00::2")}) {
		t.Errorf("the owner got %v", ips)
	}
	a.Release(addr("10.0.0.5"), t0.Add(-time.Second)) // a tombstone
	ips, err := a.Allocate("n", t0)
	if err != nil || ips[0] != addr("10.0.0.6") {
		t.Errorf("got %v, %v: want the next free address", ips, err)
	}
	a.Release(addr("192.0.2.9"), t0)
	if u := a.Usage(t0); u[0].Used != 3 || u[0].Quarantined != 1 {
		t.Errorf("usage %+v", u)
	}
}

// reference is a simple implementation of the allocator's contract.
type reference struct {
	owner map[netip.Addr]string
	until map[netip.Addr]time.Time
}

// step performs one random operation on both and compares the answers.
func step(t *testing.T, op, arg byte, a *ipam.Allocator, ref *reference, now time.Time, pools []netip.Prefix) {
	t.Helper()
	owner := fmt.Sprintf("o%d", arg%24)
	var mine []netip.Addr
	for x, o := range ref.owner {
		if o == owner {
			mine = append(mine, x)
		}
	}
	switch op % 5 {
	case 0, 1:
		ips, err := a.Allocate(owner, now)
		if err != nil {
			var full *ipam.ExhaustedError
			if !errors.As(err, &full) || len(mine) > 0 {
				t.Fatalf("allocate for %s with %v: %v", owner, mine, err)
			}
			return
		}
		for _, ip := range ips {
			if o, ok := ref.owner[ip]; ok && o != owner {
				t.Fatalf("%s given to %s and to %s", ip, o, owner)
			}
			if until, ok := ref.until[ip]; ok && now.Before(until) && ref.owner[ip] != owner {
				t.Fatalf("%s given out %s before its quarantine ends", ip, until.Sub(now))
			}
			if !slices.ContainsFunc(pools, func(p netip.Prefix) bool { return p.Contains(ip) && ip != p.Addr() && ip != p.Addr().Next() }) {
				t.Fatalf("%s is reserved or in no pool", ip)
			}
			ref.owner[ip] = owner
		}
		if len(mine) > 0 && len(mine) != len(ips) {
			t.Fatalf("%s had %v and now has %v", owner, mine, ips)
		}
	case 2:
		for _, ip := range mine {
			a.Release(ip, now)
			delete(ref.owner, ip)
			ref.until[ip] = now.Add(30 * time.Second)
		}
	case 3:
		for _, ip := range mine {
			a.Cancel(ip)
			delete(ref.owner, ip)
		}
	case 4: // another tombstone of the same addresses is replayed
		at := now.Add(-time.Duration(arg) * time.Second)
		for ip, until := range ref.until {
			if now.Before(until) {
				a.Release(ip, at)
				ref.until[ip] = later(until, at.Add(30*time.Second))
			}
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// check compares the totals.
func check(t *testing.T, a *ipam.Allocator, ref *reference, now time.Time) {
	t.Helper()
	used, resting, free := 0, 0, 0
	for _, until := range ref.until {
		if now.Before(until) {
			resting++
		}
	}
	gotUsed, gotResting := 0, 0
	for _, u := range a.Usage(now) {
		gotUsed += u.Used
		gotResting += u.Quarantined
		free += int(u.Free)
	}
	used = len(ref.owner)
	if gotUsed != used || gotResting != resting {
		t.Fatalf("usage says %d used and %d quarantined, want %d and %d", gotUsed, gotResting, used, resting)
	}
	if free < 0 {
		t.Fatalf("free is %d", free)
	}
	for ip, o := range ref.owner {
		if got, ok := a.Owner(ip); !ok || got != o {
			t.Fatalf("%s belongs to %q, want %q", ip, got, o)
		}
	}
}

func run(t *testing.T, ops []byte) {
	pools := prefixes("10.0.0.0/28", "10.0.1.0/29", "fd00::/124")
	a := newAllocator(t, nil, "10.0.0.0/28", "10.0.1.0/29", "fd00::/124")
	ref := &reference{owner: map[netip.Addr]string{}, until: map[netip.Addr]time.Time{}}
	now := t0
	for i := 0; i+2 < len(ops); i += 3 {
		now = now.Add(time.Duration(ops[i+2]) * 100 * time.Millisecond)
		step(t, ops[i], ops[i+1], a, ref, now, pools)
		for ip, until := range ref.until { // an assigned address is not in quarantine
			if _, ok := ref.owner[ip]; ok || !now.Before(until) {
				delete(ref.until, ip)
			}
		}
		check(t, a, ref, now)
	}
}

func TestRandomOperations(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		ops := make([]byte, 900)
		for i := range ops {
			ops[i] = byte(r.Uint32())
		}
		run(t, ops)
	}
}

func FuzzOperations(f *testing.F) {
	f.Add([]byte{0, 1, 1, 2, 1, 1, 0, 1, 255, 3, 1, 0})
	f.Add([]byte(strings.Repeat("\x00\x01\x10\x00\x02\x10\x02\x01\x10", 20)))
	f.Fuzz(func(t *testing.T, ops []byte) { run(t, ops) })
}

func FuzzPrefixes(f *testing.F) {
	f.Add("10.0.0.0/24", "fd00::/64", uint64(2))
	f.Add("10.0.0.0/31", "::/0", uint64(1<<63))
	f.Fuzz(func(t *testing.T, x, y string, reserved uint64) {
		var list []netip.Prefix
		for _, s := range []string{x, y} {
			p, _ := netip.ParsePrefix(s)
			list = append(list, p)
		}
		a, err := ipam.New(ipam.Config{Prefixes: list, Reserved: []uint64{reserved}})
		if err != nil {
			return
		}
		for i := range 8 {
			ips, err := a.Allocate(fmt.Sprint(i), t0)
			if err != nil && i == 0 {
				t.Fatalf("%v: a range that was accepted has no address: %v", list, err)
			}
			for _, ip := range ips {
				if !list[0].Contains(ip) && !list[1].Contains(ip) {
					t.Fatalf("%s is in no range of %v", ip, list)
				}
			}
		}
	})
}

// TestReplay rebuilds an allocator from allocations and releases, as the agent does after a restart, and
// expects the same next address.
func TestReplay(t *testing.T) {
	a := newAllocator(t, nil, "10.0.0.0/28")
	for _, o := range []string{"a", "b", "c"} {
		if _, err := a.Allocate(o, t0); err != nil {
			t.Fatal(err)
		}
	}
	a.Release(addr("10.0.0.3"), t0)
	b := newAllocator(t, nil, "10.0.0.0/28")
	b.Release(addr("10.0.0.3"), t0)
	for _, r := range []struct{ a, owner string }{{"10.0.0.2", "a"}, {"10.0.0.4", "c"}} {
		if err := b.Restore(addr(r.a), r.owner); err != nil {
			t.Fatal(err)
		}
	}
	x, _ := a.Allocate("d", t0)
	y, _ := b.Allocate("d", t0)
	if !slices.Equal(x, y) || !slices.Equal(a.Owners(), b.Owners()) {
		t.Errorf("before the restart %v for %v, after it %v for %v", x, a.Owners(), y, b.Owners())
	}
}
