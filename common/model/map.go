// SPDX-License-Identifier: Apache-2.0

package model

import (
	"hash/maphash"
	"iter"
	"maps"
	"reflect"
)

// Map is an immutable map with structural sharing: With and Without return a
// new Map and cost about one shard, not the whole, and Changes compares two
// versions in time that grows with their differences. The zero value is empty.
type Map[K comparable, V comparable] struct {
	shards []map[K]V // length 0 or a power of two
	length int
}

// shardSize is how many entries a shard holds on average before the table of
// shards is doubled.
const shardSize = 64

var mapSeed = maphash.MakeSeed()

// MakeMap copies a Go map.
func MakeMap[K comparable, V comparable](m map[K]V) Map[K, V] {
	if len(m) == 0 {
		return Map[K, V]{}
	}
	n := 1
	for n*shardSize < len(m) {
		n *= 2
	}
	r := Map[K, V]{shards: make([]map[K]V, n), length: len(m)}
	for k, v := range m {
		s := r.shard(k)
		if r.shards[s] == nil {
			r.shards[s] = make(map[K]V, shardSize)
		}
		r.shards[s][k] = v
	}
	return r
}

func (m Map[K, V]) shard(k K) int {
	return int(maphash.Comparable(mapSeed, k) & uint64(len(m.shards)-1))
}

// Len returns the number of entries.
func (m Map[K, V]) Len() int { return m.length }

// Get returns the value of a key, and whether it is there.
func (m Map[K, V]) Get(k K) (V, bool) {
	if m.length == 0 {
		var zero V
		return zero, false
	}
	v, ok := m.shards[m.shard(k)][k]
	return v, ok
}

// All yields the entries in no particular order.
func (m Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for _, shard := range m.shards {
			for k, v := range shard {
				if !yield(k, v) {
					return
				}
			}
		}
	}
}

// With returns the map with k set to v.
func (m Map[K, V]) With(k K, v V) Map[K, V] {
	if old, ok := m.Get(k); ok && old == v {
		return m
	}
	if m.length >= len(m.shards)*shardSize {
		all := maps.Collect(m.All())
		all[k] = v
		return MakeMap(all)
	}
	return m.edit(k, func(shard map[K]V) { shard[k] = v })
}

// Without returns the map without k.
func (m Map[K, V]) Without(k K) Map[K, V] {
	if _, ok := m.Get(k); !ok {
		return m
	}
	return m.edit(k, func(shard map[K]V) { delete(shard, k) })
}

func (m Map[K, V]) edit(k K, change func(map[K]V)) Map[K, V] {
	s := m.shard(k)
	r := Map[K, V]{shards: append([]map[K]V(nil), m.shards...)}
	shard := maps.Clone(m.shards[s])
	if shard == nil {
		shard = make(map[K]V)
	}
	change(shard)
	r.shards[s] = shard
	r.length = m.length - len(m.shards[s]) + len(shard)
	return r
}

// Changes yields every key whose value in m differs from that in old, or which
// only one of them has.
func (m Map[K, V]) Changes(old Map[K, V]) iter.Seq[K] {
	return func(yield func(K) bool) {
		same := len(m.shards) == len(old.shards)
		for i, shard := range m.shards {
			if same && sameMap(shard, old.shards[i]) {
				continue
			}
			for k, v := range shard {
				if was, ok := old.Get(k); (!ok || was != v) && !yield(k) {
					return
				}
			}
		}
		for i, shard := range old.shards {
			if same && sameMap(shard, m.shards[i]) {
				continue
			}
			for k := range shard {
				if _, ok := m.Get(k); !ok && !yield(k) {
					return
				}
			}
		}
	}
}

// sameMap reports whether two Go maps are one map, not merely equal.
func sameMap[K comparable, V comparable](a, b map[K]V) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}
