// SPDX-License-Identifier: Apache-2.0

package immutable

import (
	"hash/maphash"
	"iter"
)

// Map is an immutable map with structural sharing. With and Without return a new Map and copy a path of a
// few small nodes. Changes compares two versions in time that grows with their differences. The zero value
// is empty.
//
// It is a trie over the bits of a hash of the key. Entries with the same bits so far share one leaf until
// it is full.
type Map[K comparable, V comparable] struct {
	root   *node[K, V]
	length int
}

// node has either children or entries. Nodes are never changed once a Map refers to them.
type node[K comparable, V comparable] struct {
	children []*node[K, V] // fanout of them, nil where empty
	entries  []entry[K, V]
}

type entry[K comparable, V comparable] struct {
	key   K
	value V
}

const (
	bitsPerLevel = 5 // of the hash, per level
	fanout       = 1 << bitsPerLevel
	leafSize     = 8  // entries; a fuller leaf becomes a node with children
	hashBits     = 60 // of the hash in use; below them leaves grow without bound
)

var seed = maphash.MakeSeed()

func hashOf[K comparable](k K) uint64 { return maphash.Comparable(seed, k) }

// MakeMap returns a Map with the entries of a Go map, which it copies.
func MakeMap[K comparable, V comparable](m map[K]V) Map[K, V] {
	if len(m) == 0 {
		return Map[K, V]{}
	}
	b := make([]hashed[K, V], 0, len(m))
	for k, v := range m {
		b = append(b, hashed[K, V]{hashOf(k), entry[K, V]{k, v}})
	}
	return Map[K, V]{root: buildNode(b, make([]hashed[K, V], len(b)), 0), length: len(m)}
}

type hashed[K comparable, V comparable] struct {
	hash uint64
	entry[K, V]
}

// buildNode distributes entries by the bits of their hashes from shift on.
// spare is as long as all and is overwritten.
func buildNode[K comparable, V comparable](all, spare []hashed[K, V], shift uint) *node[K, V] {
	if len(all) == 0 {
		return nil
	}
	if len(all) <= leafSize || shift >= hashBits {
		n := &node[K, V]{entries: make([]entry[K, V], len(all))}
		for i, e := range all {
			n.entries[i] = e.entry
		}
		return n
	}
	var end [fanout]int
	for _, e := range all {
		end[e.hash>>shift%fanout]++
	}
	for i := 1; i < fanout; i++ {
		end[i] += end[i-1]
	}
	bounds := end
	for _, e := range all {
		i := e.hash >> shift % fanout
		end[i]--
		spare[end[i]] = e
	}
	n := &node[K, V]{children: make([]*node[K, V], fanout)}
	for i := range n.children {
		n.children[i] = buildNode(spare[end[i]:bounds[i]], all[end[i]:bounds[i]], shift+bitsPerLevel)
	}
	return n
}

// Len returns the number of entries.
func (m Map[K, V]) Len() int { return m.length }

// Get returns the value of a key, and whether the key exists.
func (m Map[K, V]) Get(k K) (V, bool) {
	if m.root == nil {
		var zero V
		return zero, false
	}
	return m.root.get(k, hashOf(k))
}

// get takes the hash without the bits that led to the node.
func (n *node[K, V]) get(k K, hash uint64) (V, bool) {
	for n != nil {
		if n.children == nil {
			for i := range n.entries {
				if n.entries[i].key == k {
					return n.entries[i].value, true
				}
			}
			break
		}
		n = n.children[hash%fanout]
		hash >>= bitsPerLevel
	}
	var zero V
	return zero, false
}

// All yields the entries in no particular order.
func (m Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { m.root.all(yield) }
}

func (n *node[K, V]) all(yield func(K, V) bool) bool {
	if n == nil {
		return true
	}
	for _, e := range n.entries {
		if !yield(e.key, e.value) {
			return false
		}
	}
	for _, c := range n.children {
		if c != nil && !c.all(yield) {
			return false
		}
	}
	return true
}

// With returns a Map in which k has the value v. If m has that entry already, With returns m.
func (m Map[K, V]) With(k K, v V) Map[K, V] {
	root, added, changed := m.root.with(k, v, hashOf(k), 0)
	if !changed {
		return m
	}
	return Map[K, V]{root: root, length: m.length + added}
}

func (n *node[K, V]) with(k K, v V, hash uint64, shift uint) (_ *node[K, V], added int, changed bool) {
	if n == nil {
		return &node[K, V]{entries: []entry[K, V]{{k, v}}}, 1, true
	}
	if n.children != nil {
		i := hash >> shift % fanout
		child, added, changed := n.children[i].with(k, v, hash, shift+bitsPerLevel)
		if !changed {
			return n, 0, false
		}
		return n.replace(int(i), child), added, true
	}
	for i, e := range n.entries {
		if e.key == k {
			if e.value == v {
				return n, 0, false
			}
			c := &node[K, V]{entries: append([]entry[K, V](nil), n.entries...)}
			c.entries[i].value = v
			return c, 0, true
		}
	}
	if len(n.entries) < leafSize || shift >= hashBits {
		entries := make([]entry[K, V], len(n.entries)+1)
		entries[copy(entries, n.entries)] = entry[K, V]{k, v}
		return &node[K, V]{entries: entries}, 1, true
	}
	all := []hashed[K, V]{{hash, entry[K, V]{k, v}}}
	for _, e := range n.entries {
		all = append(all, hashed[K, V]{hashOf(e.key), e})
	}
	return buildNode(all, make([]hashed[K, V], len(all)), shift), 1, true
}

func (n *node[K, V]) replace(i int, child *node[K, V]) *node[K, V] {
	c := &node[K, V]{children: append([]*node[K, V](nil), n.children...)}
	c.children[i] = child
	return c
}

// Without returns a Map that lacks k. If m lacks it already, Without returns m.
func (m Map[K, V]) Without(k K) Map[K, V] {
	root, removed := m.root.without(k, hashOf(k))
	if !removed {
		return m
	}
	return Map[K, V]{root: root, length: m.length - 1}
}

func (n *node[K, V]) without(k K, hash uint64) (_ *node[K, V], removed bool) {
	if n == nil {
		return nil, false
	}
	if n.children != nil {
		i := int(hash % fanout)
		child, removed := n.children[i].without(k, hash>>bitsPerLevel)
		if !removed {
			return n, false
		}
		return n.replace(i, child).collapse(), true
	}
	for i, e := range n.entries {
		if e.key == k {
			if len(n.entries) == 1 {
				return nil, true
			}
			entries := make([]entry[K, V], 0, len(n.entries)-1)
			entries = append(append(entries, n.entries[:i]...), n.entries[i+1:]...)
			return &node[K, V]{entries: entries}, true
		}
	}
	return n, false
}

// collapse turns a node whose entries fit half a leaf into a leaf, so that a shrinking map frees its
// memory.
func (n *node[K, V]) collapse() *node[K, V] {
	size := 0
	for _, c := range n.children {
		if c == nil {
			continue
		}
		if size += len(c.entries); c.children != nil || size > leafSize/2 {
			return n
		}
	}
	if size == 0 {
		return nil
	}
	leaf := &node[K, V]{entries: make([]entry[K, V], 0, size)}
	for _, c := range n.children {
		if c != nil {
			leaf.entries = append(leaf.entries, c.entries...)
		}
	}
	return leaf
}

// Changes yields every key whose value differs between m and old, or that only one of them has. It yields
// each key once, in no particular order.
func (m Map[K, V]) Changes(old Map[K, V]) iter.Seq[K] {
	return func(yield func(K) bool) { m.root.changes(old.root, 0, yield) }
}

func (n *node[K, V]) changes(old *node[K, V], shift uint, yield func(K) bool) bool {
	if n == old {
		return true
	}
	if n != nil && old != nil && n.children != nil && old.children != nil {
		for i, c := range n.children {
			if !c.changes(old.children[i], shift+bitsPerLevel, yield) {
				return false
			}
		}
		return true
	}
	return n.all(func(k K, v V) bool {
		was, ok := old.get(k, hashOf(k)>>shift)
		return ok && was == v || yield(k)
	}) && old.all(func(k K, _ V) bool {
		_, ok := n.get(k, hashOf(k)>>shift)
		return ok || yield(k)
	})
}
