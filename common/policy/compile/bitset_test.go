// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestBitset compares sets, after random changes, with maps.
func TestBitset(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		var sets [3]bitset
		var want [3]map[int]bool
		for i := range sets {
			want[i] = make(map[int]bool)
			for range rng.IntN(40) {
				n, in := rng.IntN(5)*rng.IntN(200), rng.IntN(3) > 0
				if changed := sets[i].set(n, in); changed != (want[i][n] != in) {
					t.Fatalf("set %d of %v to %t: changed %t", n, want[i], in, changed)
				}
				if in {
					want[i][n] = true
				} else {
					delete(want[i], n)
				}
			}
			if got := slices.Collect(sets[i].all()); !slices.Equal(got, slices.Sorted(maps.Keys(want[i]))) || sets[i].empty() != (len(got) == 0) {
				t.Fatalf("got %v, want %v", got, want[i])
			}
		}
		a, b, c := sets[0], sets[1], sets[2]
		union, without := maps.Clone(want[0]), maps.Clone(want[0])
		maps.Copy(union, want[1])
		maps.DeleteFunc(without, func(n int, _ bool) bool { return want[1][n] })
		if got := slices.Collect(a.union(b).all()); !slices.Equal(got, slices.Sorted(maps.Keys(union))) {
			t.Errorf("union %v, want %v", got, union)
		}
		if got := slices.Collect(a.without(b).all()); !slices.Equal(got, slices.Sorted(maps.Keys(without))) {
			t.Errorf("difference %v, want %v", got, without)
		}
		if a.meets(b) != (len(without) < len(want[0])) {
			t.Errorf("%v meets %v: %t", want[0], want[1], a.meets(b))
		}
		if same := maps.Equal(want[0], want[1]); same != a.sameOutside(b, nil) || same != (string(a.appendKey(nil)) == string(b.appendKey(nil))) {
			t.Errorf("%v and %v are the same: %t", want[0], want[1], a.sameOutside(b, nil))
		}
		if got := a.sameOutside(b, c); got != maps.Equal(outside(want[0], want[2]), outside(want[1], want[2])) {
			t.Errorf("%v and %v are the same outside %v: %t", want[0], want[1], want[2], got)
		}
	}
}

// outside returns the members of a that are not in b.
func outside(a, b map[int]bool) map[int]bool {
	a = maps.Clone(a)
	maps.DeleteFunc(a, func(n int, _ bool) bool { return b[n] })
	return a
}
