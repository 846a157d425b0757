// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// peers holds the known addresses, their owners and prefixes, and the class that follows
// from these. It matches terms once per owner and prefix, not once per address.
type peers struct {
	node    string
	cluster *model.Snapshot
	words   *vocabulary

	owners     map[ownerKey]*owner
	namespaces map[string]*namespace
	outside    *owner // the owner of addresses without pod or node

	entries  map[netip.Addr]*entry
	prefixes map[netip.Prefix]*prefix
	lengths  [2][]int // of prefixes in use, longest first; index 1 is IPv6
	covers   map[string]*cover
	nowhere  *prefix                  // the prefix of addresses outside all prefixes
	blocks   map[netip.Prefix][]*term // terms of address blocks, by CIDR

	// spilled are the blocks that exceed Limits.Overlaps. They have no prefixes. overlapping: all blocks together exceed it.
	spilled     map[*term]bool
	overlapping bool

	// New prefixes, those that may be removed, and whether ranges of nodes changed.
	fresh, idle   map[*prefix]bool
	rangesChanged bool

	// closed are the words that exceed Limits.PeerClasses, closedBits the terms among them.
	// crowded: some addresses exceed the limit.
	closed     map[peerWord]bool
	closedBits bitset
	crowded    bool
	relist     bool // crowded changed, so that all addresses must be listed again

	classes  map[string]*class // by key
	byNumber []*class          // the same classes, sorted
	// note keeps classIndex up to date; index builds it on first use.
	classIndex *classIndex
	next       model.PeerClass // the lowest number that was never used

	// The changes since the last update.
	marked          []*group
	moved           []*entry
	gone            []netip.Addr
	prefixesChanged bool

	scratch []byte
}

// group is the addresses with one owner and one cover; they share a class.
type group struct {
	owner   *owner
	cover   *cover
	entries list
	class   *class
	marked  bool
}

// class is a set of addresses that no rule can distinguish.
type class struct {
	number model.PeerClass
	key    string
	kind   model.AddressKind
	bits   bitset // terms that match
	names  []model.NamedPort
	texts  []string // of names
	groups map[*group]bool
	info   model.PeerClassInfo
	gone   bool
	turn   uint64 // see classIndex
}

func newPeers(node string, words *vocabulary) *peers {
	p := &peers{
		node: node, words: words,
		owners: make(map[ownerKey]*owner), namespaces: make(map[string]*namespace),
		outside: &owner{groups: make(map[*cover]*group)},
		entries: make(map[netip.Addr]*entry), prefixes: make(map[netip.Prefix]*prefix), covers: make(map[string]*cover),
		nowhere: &prefix{cover: newCover()}, blocks: make(map[netip.Prefix][]*term),
		fresh: make(map[*prefix]bool), idle: make(map[*prefix]bool),
		classes: make(map[string]*class), next: model.World + 1,
	}
	p.mark(p.group(p.outside, p.nowhere.cover)) // World always exists
	return p
}

// updateTerms brings owners and prefixes up to date with the vocabulary.
func (p *peers) updateTerms(added, removed []*term, namesChanged bool, spilled map[*term]bool) {
	p.forgetOwners(removed)
	p.matchOwners(added)
	p.updatePrefixes(p.unspilled(added, removed, spilled))
	if !namesChanged {
		return
	}
	for _, o := range p.owners {
		p.resolve(o)
	}
}

// group returns the group of an owner and a cover.
func (p *peers) group(o *owner, c *cover) *group {
	g := o.groups[c]
	if g == nil {
		g = &group{owner: o, cover: c}
		o.groups[c], c.groups[o] = g, g
		p.mark(g)
	}
	return g
}

// mark records that the class of a group may change, or that the group may be empty.
func (p *peers) mark(g *group) {
	if !g.marked {
		g.marked = true
		p.marked = append(p.marked, g)
	}
}

// place puts an entry into the group of its owner and prefix.
func (p *peers) place(e *entry) {
	g := p.group(e.owner, e.prefix.cover)
	if e.group == g {
		return
	}
	p.unplace(e)
	e.group = g
	g.entries.push(e, inGroup)
	p.moved = append(p.moved, e)
}

func (p *peers) unplace(e *entry) {
	if e.group == nil {
		return
	}
	e.group.entries.remove(e, inGroup)
	if e.group.entries.length == 0 {
		p.mark(e.group)
	}
	e.group = nil
}

func (p *peers) removeEntry(e *entry) {
	p.unplace(e)
	if e.prefix != nil {
		e.prefix.entries.remove(e, inPrefix)
	}
	delete(p.entries, e.addr)
	p.gone = append(p.gone, e.addr)
}

// weight counts the addresses and prefixes of a group.
func (p *peers) weight(g *group) int {
	n := g.entries.length
	if g.owner == p.outside {
		n += len(g.cover.prefixes)
		if g.cover == p.nowhere.cover {
			n++
		}
	}
	return n
}

// meaning computes the class of a group. An address with an owner is known, whatever the
// prefix says.
func (p *peers) meaning(g *group) class {
	c := class{kind: g.owner.kind, names: g.owner.names, texts: g.owner.texts, bits: g.owner.bits.union(g.cover.bits)}
	if g.owner == p.outside {
		c.kind = g.cover.kind
		if p.crowded && g.cover != p.nowhere.cover {
			c.kind = model.KindUnknown
		}
	}
	if len(p.closed) > 0 {
		c.bits = c.bits.without(p.closedBits)
		c.names = slices.DeleteFunc(slices.Clone(c.names), func(n model.NamedPort) bool { return p.closed[peerWord{name: n.Name}] })
		c.texts = nameTexts(c.names)
	}
	p.scratch = append(p.scratch[:0], byte(c.kind))
	p.scratch = append(p.scratch, strings.Join(c.texts, "\n")...)
	p.scratch = append(p.scratch, 0)
	p.scratch = c.bits.appendKey(p.scratch)
	c.key = string(p.scratch)
	return c
}

// world reports whether no rule distinguishes the addresses from any others.
func (c *class) world() bool {
	return c.kind == model.KindKnown && len(c.names) == 0 && c.bits.empty()
}

// match returns the answer of a term for the class.
func (c *class) match(t *term) match {
	switch {
	case t.closed:
		return maybe
	case c.bits.has(t.bit):
		return yes
	case t.peer.Kind == model.PeerUnknown, t.peer.Kind == model.PeerPods && c.kind == model.KindUnknown:
		return maybe
	}
	return no
}

// list is a doubly linked list of entries through one of their links.
type list struct {
	head   *entry
	length int
}

type link struct{ next, previous *entry }

// The links of an entry.
const (
	inPrefix = 0
	inGroup  = 1
)

func (l *list) push(e *entry, in int) {
	e.links[in] = link{next: l.head}
	if l.head != nil {
		l.head.links[in].previous = e
	}
	l.head = e
	l.length++
}

func (l *list) remove(e *entry, in int) {
	at := &e.links[in]
	if at.next != nil {
		at.next.links[in].previous = at.previous
	}
	if at.previous != nil {
		at.previous.links[in].next = at.next
	} else {
		l.head = at.next
	}
	*at = link{}
	l.length--
}
