// SPDX-License-Identifier: Apache-2.0

package immutable

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestMapAgainstGoMap compares versions of a Map with Go maps, and the changes
// between any two versions with those of the Go maps.
func TestMapAgainstGoMap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for round := range 60 {
		size := 1 + r.IntN([]int{4, 40, 600, 5000}[round%4])
		m, want := Map[int, int]{}, map[int]int{}
		type version struct {
			m    Map[int, int]
			want map[int]int
		}
		versions := []version{{m, maps.Clone(want)}}
		for step := range 4 * size {
			k, v := r.IntN(size), r.IntN(3)
			if growing := step < 2*size; r.IntN(4) == 0 == growing {
				m = m.Without(k)
				delete(want, k)
			} else {
				m = m.With(k, v)
				want[k] = v
			}
			if got, ok := m.Get(k); ok != contains(want, k) || got != want[k] {
				t.Fatalf("key %d is %d, %t", k, got, ok)
			}
			if r.IntN(size) == 0 {
				versions = append(versions, version{m, maps.Clone(want)})
			}
		}
		versions = append(versions, version{MakeMap(want), want})
		for _, v := range versions {
			if got := maps.Collect(v.m.All()); !maps.Equal(got, v.want) || v.m.Len() != len(v.want) {
				t.Fatalf("a version of %d entries has %d", len(v.want), len(got))
			}
		}
		for range 10 {
			a, b := versions[r.IntN(len(versions))], versions[r.IntN(len(versions))]
			got := slices.Sorted(b.m.Changes(a.m))
			if want := differences(a.want, b.want); !slices.Equal(got, want) {
				t.Fatalf("changes are %v, want %v", got, want)
			}
		}
	}
}

func contains(m map[int]int, k int) bool { _, ok := m[k]; return ok }

func differences(a, b map[int]int) []int {
	var keys []int
	for k, v := range b {
		if was, ok := a[k]; !ok || was != v {
			keys = append(keys, k)
		}
	}
	for k := range a {
		if !contains(b, k) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

// TestSharingAndShrinking checks that an edit without an effect returns the same nodes, and that a map without
// entries has no nodes.
func TestSharingAndShrinking(t *testing.T) {
	m := Map[int, int]{}
	for i := range 5000 {
		m = m.With(i, i)
	}
	if same := m.With(17, 17); same.root != m.root {
		t.Error("setting an equal value makes a new map")
	}
	if same := m.Without(-1); same.root != m.root {
		t.Error("removing a missing key makes a new map")
	}
	for i := range 5000 {
		m = m.Without(i)
	}
	if m.root != nil || m.Len() != 0 {
		t.Error("an empty map still has nodes")
	}
}

// TestEqualHashes checks leaves of keys whose hashes are equal: below the last level a leaf exceeds leafSize
// and never splits.
func TestEqualHashes(t *testing.T) {
	const keys, hash = 5 * leafSize, 0
	var n *node[int, int]
	all := make([]hashed[int, int], 0, keys)
	for k := range keys {
		var added int
		if n, added, _ = n.with(k, 2*k, hash, hashBits); added != 1 {
			t.Fatalf("key %d: added %d entries, want 1", k, added)
		}
		all = append(all, hashed[int, int]{hash, entry[int, int]{k, 2 * k}})
	}
	for name, leaf := range map[string]*node[int, int]{"edited": n, "built": buildNode(all, make([]hashed[int, int], keys), 0)} {
		for k := range keys {
			if v, ok := leaf.get(k, hash); !ok || v != 2*k {
				t.Errorf("%s: key %d is %d, %t, want %d", name, k, v, ok, 2*k)
			}
			if smaller, removed := leaf.without(k, hash); !removed || smaller == leaf {
				t.Errorf("%s: key %d is not removed", name, k)
			}
		}
	}
}

func BenchmarkMap(b *testing.B) {
	all := map[int]int{}
	for i := range 100_000 {
		all[i] = i
	}
	m := MakeMap(all)
	b.Run("with", func(b *testing.B) {
		for i := range b.N {
			m.With(100_000+i, 1)
		}
	})
	b.Run("changes", func(b *testing.B) {
		next := m.With(5, -1)
		for range b.N {
			for range next.Changes(m) {
			}
		}
	})
	b.Run("make", func(b *testing.B) {
		for range b.N {
			MakeMap(all)
		}
	})
}
