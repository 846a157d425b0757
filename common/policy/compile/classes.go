// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// bucket is the groups that now form one class.
type bucket struct {
	class   // the meaning of the class; number and groups are not set
	members []*group
	// from are the previous classes of the members, with the number of addresses and
	// prefixes from each.
	from map[*class]int
	heir *class // the class that continues as this bucket
}

// classChanges is the result of a reclassification.
type classChanges struct {
	added, dropped []*class // by number
	// stayed are classes whose description may change.
	stayed []*class
	// renumbered are groups whose class now has another number.
	renumbered []*group
	// described: classes were added or removed, or their descriptions changed.
	described bool
	reread    bool // see turnover
}

// turnover is the change of the vocabulary.
type turnover struct {
	added, removed []*term
	before, after  words
	namesChanged   bool
	// bits are those of terms that are in one vocabulary only; names are the port names that
	// are in both.
	bits  bitset
	names map[string]bool
	// reread: the set of words that exceed the limits changed, so that all rows must be
	// rebuilt.
	reread bool
}

// same reports whether a previous class and a present one have the same meaning, as far as
// both vocabularies can express it.
func (t turnover) same(was *class, is *bucket) bool {
	if was.kind != is.kind || !was.bits.sameOutside(is.bits, t.bits) {
		return false
	}
	if len(was.texts) == 0 && len(is.texts) == 0 {
		return true
	}
	common := func(texts []string) []string {
		return slices.DeleteFunc(slices.Clone(texts), func(s string) bool {
			name, _, _ := strings.Cut(s, "=")
			return !t.names[name]
		})
	}
	return slices.Equal(common(was.texts), common(is.texts))
}

// assignClasses assigns marked groups to classes. A class keeps its number as long as the
// rules that stay cannot distinguish its old meaning from the new, so that rows that stay
// remain correct under that number. If a class is split, its largest part keeps the number.
// If classes are joined, the number of the largest is kept. inherit, if not nil, finds
// numbers for classes without a predecessor.
func (p *peers) assignClasses(t turnover, inherit func([]*bucket) []uint32) classChanges {
	affected := make(map[*class]bool)
	buckets := make(map[string]*bucket)
	for _, g := range p.marked {
		g.marked = false
		if p.weight(g) == 0 {
			delete(g.owner.groups, g.cover)
			delete(g.cover.groups, g.owner)
			if g.class != nil {
				delete(g.class.groups, g)
				if len(g.class.groups) == 0 {
					affected[g.class] = true
				}
			}
			continue
		}
		m := p.meaning(g)
		if g.class != nil && g.class.key == m.key {
			continue
		}
		if g.class != nil {
			affected[g.class] = true
			delete(g.class.groups, g)
		}
		put(buckets, m, g, p.weight(g))
	}
	p.marked = nil
	for c := range affected {
		p.stay(buckets, c)
	}
	for key := range maps.Clone(buckets) {
		if c := p.classes[key]; c != nil && !affected[c] {
			affected[c] = true
			p.stay(buckets, c)
		}
	}
	if len(affected)+len(buckets) == 0 {
		return classChanges{reread: t.reread}
	}
	for c := range affected {
		delete(p.classes, c.key)
	}
	sorted := slices.SortedFunc(maps.Values(buckets), func(a, b *bucket) int { return cmp.Compare(a.key, b.key) })
	chooseHeirs(sorted, t)
	ch := p.rename(sorted, affected, inherit)
	ch.reread = t.reread
	return ch
}

func put(buckets map[string]*bucket, m class, g *group, weight int) {
	b := buckets[m.key]
	if b == nil {
		b = &bucket{class: m, from: make(map[*class]int)}
		buckets[m.key] = b
	}
	b.members = append(b.members, g)
	if g.class != nil {
		b.from[g.class] += weight
	}
}

// stay puts the groups of a class whose meaning did not change into their bucket.
func (p *peers) stay(buckets map[string]*bucket, c *class) {
	if len(c.groups) == 0 {
		return
	}
	same := *c
	for g := range c.groups {
		put(buckets, same, g, p.weight(g))
	}
}

// chooseHeirs finds for each bucket the class that continues as this bucket, if there is
// one, by the number of members. World always continues as World.
func chooseHeirs(buckets []*bucket, t turnover) {
	type pair struct {
		bucket *bucket
		class  *class
		weight int
	}
	var pairs []pair
	for _, b := range buckets {
		for c, weight := range b.from {
			if !b.world() && c.number != model.World && t.same(c, b) || b.world() && c.number == model.World {
				pairs = append(pairs, pair{b, c, weight})
			}
		}
	}
	slices.SortFunc(pairs, func(a, b pair) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.class.number, b.class.number), cmp.Compare(a.bucket.key, b.bucket.key))
	})
	used := make(map[*class]bool)
	for _, p := range pairs {
		if p.bucket.heir == nil && !used[p.class] {
			p.bucket.heir = p.class
			used[p.class] = true
		}
	}
}

// rename makes classes of the buckets.
func (p *peers) rename(buckets []*bucket, affected map[*class]bool, inherit func([]*bucket) []uint32) classChanges {
	ch := classChanges{described: true}
	var inherited []uint32
	if inherit != nil {
		inherited = inherit(buckets)
	}
	for i, b := range buckets {
		c := b.heir
		if c == nil {
			c = &class{number: model.World}
			switch {
			case b.world():
			case inherited != nil && inherited[i] != none:
				c.number = model.PeerClass(inherited[i])
			default:
				c.number = p.next
				p.next++
			}
			ch.added = append(ch.added, c)
		} else {
			ch.stayed = append(ch.stayed, c)
		}
		delete(affected, c)
		was := *c
		c.key, c.kind, c.bits, c.names, c.texts = b.key, b.kind, b.bits, b.names, b.texts
		c.groups = make(map[*group]bool, len(b.members))
		for _, g := range b.members {
			if g.class != nil && g.class.number != c.number {
				ch.renumbered = append(ch.renumbered, g)
			}
			g.class = c
			c.groups[g] = true
		}
		c.info = p.describe(c)
		p.note(c, &was)
		p.classes[c.key] = c
	}
	ch.dropped = slices.SortedFunc(maps.Keys(affected), compareClasses)
	for _, c := range ch.dropped {
		c.gone = true
	}
	slices.SortFunc(ch.added, compareClasses)
	p.order(ch)
	return ch
}

// order updates byNumber.
func (p *peers) order(ch classChanges) {
	all := make([]*class, 0, len(p.classes))
	added := ch.added
	for _, c := range p.byNumber {
		for len(added) > 0 && added[0].number < c.number {
			all, added = append(all, added[0]), added[1:]
		}
		if !c.gone {
			all = append(all, c)
		}
	}
	p.byNumber = append(all, added...)
}

func (p *peers) describe(c *class) model.PeerClassInfo {
	info := model.PeerClassInfo{Class: c.number, Kind: c.kind, Names: c.texts}
	for bit := range c.bits.all() {
		info.Terms = append(info.Terms, p.words.slots[bit].text)
	}
	slices.Sort(info.Terms)
	return info
}
