// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// prefix is one that a rule names or that a node assigns pod addresses from. An address
// belongs to the longest prefix that contains it.
type prefix struct {
	netip.Prefix     // not valid for the addresses outside all prefixes
	uses         int // by blocks of terms and by nodes
	ranges       int // uses by nodes
	kind         model.AddressKind
	// bits are the PeerBlock terms that match.
	bits    bitset
	cover   *cover
	entries list
}

// cover is a set of prefixes that rules cannot distinguish.
type cover struct {
	kind     model.AddressKind
	bits     bitset
	prefixes map[*prefix]bool
	groups   map[*owner]*group
}

func newCover() *cover {
	return &cover{prefixes: make(map[*prefix]bool), groups: make(map[*owner]*group)}
}

func coverKey(kind model.AddressKind, bits bitset) string {
	return string(bits.appendKey([]byte{byte(kind)}))
}

func (c *cover) size() int {
	n := 0
	for p := range c.prefixes {
		n += 1 + p.entries.length
	}
	return n
}

func family(a netip.Addr) int {
	if a.Is6() {
		return 1
	}
	return 0
}

// longest returns the longest prefix that contains the address.
func (p *peers) longest(a netip.Addr) *prefix { return p.containing(a, a.BitLen()) }

// containing returns the longest prefix of at most that many bits that contains the address.
func (p *peers) containing(a netip.Addr, most int) *prefix {
	for _, bits := range p.lengths[family(a)] {
		if bits > most {
			continue
		}
		masked, err := a.Prefix(bits)
		if err != nil {
			continue
		}
		if found, ok := p.prefixes[masked]; ok {
			return found
		}
	}
	return p.nowhere
}

// usePrefix counts a use of a prefix. updatePrefixes then places new and removed prefixes.
func (p *peers) usePrefix(at netip.Prefix, uses, ranges int) {
	x, ok := p.prefixes[at]
	if !ok {
		x = &prefix{Prefix: at}
		p.prefixes[at] = x
		p.fresh[x] = true
	}
	x.uses += uses
	x.ranges += ranges
	if ranges != 0 {
		p.rangesChanged = true
	}
	if x.uses == 0 {
		p.idle[x] = true
	}
}

// useRanges counts the pod ranges of a node.
func (p *peers) useRanges(n *model.Node, by int) {
	if n == nil {
		return
	}
	for _, cidr := range n.PodCIDRs {
		p.usePrefix(cidr, by, by)
	}
}

// useEverywhere adds or removes the prefixes that contain every address. They give addresses
// without a more specific entry a class that rules can match.
func (p *peers) useEverywhere(on bool) {
	by := -1
	if on {
		by = 1
	}
	for _, a := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		p.usePrefix(netip.PrefixFrom(a, 0), by, 0)
	}
	p.updatePrefixes(nil, nil)
}

// markAll marks every group.
func (p *peers) markAll() {
	for _, g := range p.nowhere.cover.groups {
		p.mark(g)
	}
	for _, c := range p.covers {
		for _, g := range c.groups {
			p.mark(g)
		}
	}
}

func (p *peers) useBlock(b model.IPBlock, by int) {
	p.usePrefix(b.CIDR, by, 0)
	for _, e := range b.Except {
		p.usePrefix(e, by, 0)
	}
}

// contains reports whether the block contains all of the prefix, which is in its CIDR, outside longer prefixes: the
// holes of a block have entries of their own. A block may have thousands of exceptions.
func (p *peers) contains(t *term, x netip.Prefix) bool {
	if t.holes == nil {
		t.holes = make(map[netip.Prefix]bool, len(t.peer.Block.Except))
		for _, e := range t.peer.Block.Except {
			t.holes[e] = true
		}
	}
	if len(t.holes) == 0 {
		return true
	}
	for outer := range p.around(x) {
		if t.holes[outer] {
			return false
		}
	}
	return true
}

// unspilled returns the blocks that come and go among those within the limit of overlaps, and stores which exceed it now.
func (p *peers) unspilled(added, removed []*term, spilled map[*term]bool) (come, gone []*term) {
	was := maps.Clone(p.spilled)
	p.spilled = spilled
	for _, t := range removed {
		if t.peer.Kind == model.PeerBlock && !was[t] {
			gone = append(gone, t)
		}
		delete(was, t)
	}
	for _, t := range added {
		if t.peer.Kind == model.PeerBlock && !spilled[t] {
			come = append(come, t)
		}
	}
	fresh := make(map[*term]bool, len(added))
	for _, t := range added {
		fresh[t] = true
	}
	for t := range was {
		if !spilled[t] {
			come = append(come, t)
		}
	}
	for t := range spilled {
		if !was[t] && !fresh[t] {
			gone = append(gone, t)
		}
	}
	return come, gone
}

// updatePrefixes brings prefixes up to date with the terms and nodes: which prefixes exist,
// which terms match them, which addresses they contain, and which of them rules cannot
// distinguish.
func (p *peers) updatePrefixes(added, removed []*term) {
	for _, t := range removed {
		p.forgetBlock(t)
		p.useBlock(t.peer.Block, -1)
	}
	for _, t := range added {
		p.blocks[t.peer.Block.CIDR] = append(p.blocks[t.peer.Block.CIDR], t)
		p.useBlock(t.peer.Block, 1)
	}
	if len(added)+len(removed)+len(p.fresh)+len(p.idle) == 0 && !p.rangesChanged {
		return
	}
	p.changePrefixes()
	var come, gone bitset
	for _, t := range added {
		come.set(t.bit, true)
	}
	for _, t := range removed {
		gone.set(t.bit, true)
	}
	changed := make(map[*prefix]bool)
	for _, x := range p.prefixes {
		if p.match(x, come, gone) {
			changed[x] = true
		}
	}
	p.fresh, p.idle, p.rangesChanged = make(map[*prefix]bool), make(map[*prefix]bool), false
	p.updateCovers(changed)
}

// changePrefixes moves addresses to new prefixes and away from removed ones.
func (p *peers) changePrefixes() {
	var gone []*prefix
	for x := range p.idle {
		if x.uses == 0 {
			gone = append(gone, x)
			delete(p.prefixes, x.Prefix)
		}
	}
	for _, x := range gone {
		delete(p.fresh, x)
	}
	if len(gone)+len(p.fresh) == 0 {
		return
	}
	p.prefixesChanged = true
	p.lengths = [2][]int{}
	for at := range p.prefixes {
		if f := family(at.Addr()); !slices.Contains(p.lengths[f], at.Bits()) {
			p.lengths[f] = append(p.lengths[f], at.Bits())
		}
	}
	for _, l := range p.lengths {
		slices.SortFunc(l, func(a, b int) int { return b - a })
	}
	for _, x := range gone {
		if x.cover == nil {
			continue
		}
		p.leaveCover(x)
		for e := x.entries.head; e != nil; e = x.entries.head {
			p.moveEntry(e, p.longest(e.addr))
		}
	}
	shortest := slices.SortedFunc(maps.Keys(p.fresh), func(a, b *prefix) int { return cmp.Compare(a.Bits(), b.Bits()) })
	for _, x := range shortest {
		from := p.containing(x.Addr(), x.Bits()-1)
		for e, next := from.entries.head, (*entry)(nil); e != nil; e = next {
			next = e.links[inPrefix].next
			if x.Contains(e.addr) {
				p.moveEntry(e, x)
			}
		}
	}
}

func (p *peers) moveEntry(e *entry, to *prefix) {
	e.prefix.entries.remove(e, inPrefix)
	e.prefix = to
	to.entries.push(e, inPrefix)
	if to.cover != nil {
		p.place(e)
	}
}

// match updates the terms that match a prefix, and reports whether they changed. added and removed are the bits
// of blocks. Only blocks whose CIDR contains the prefix can match it, so the work does not grow with the others.
func (p *peers) match(x *prefix, added, removed bitset) bool {
	fresh := p.fresh[x]
	changed := fresh
	if x.bits.meets(removed) {
		x.bits, changed = x.bits.without(removed), true
	}
	if fresh || !added.empty() {
		for outer := range p.around(x.Prefix) {
			for _, t := range p.blocks[outer] {
				if (fresh || added.has(t.bit)) && p.contains(t, x.Prefix) {
					changed = x.bits.set(t.bit, true) || changed
				}
			}
		}
	}
	if fresh || p.rangesChanged {
		kind := p.kindOf(x)
		changed = changed || kind != x.kind
		x.kind = kind
	}
	return changed
}

// around yields the prefixes that contain a prefix, itself included, of all lengths in use.
func (p *peers) around(x netip.Prefix) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for _, bits := range p.lengths[family(x.Addr())] {
			if bits > x.Bits() {
				continue
			}
			if masked, err := x.Addr().Prefix(bits); err == nil && !yield(masked) {
				return
			}
		}
	}
}

// forgetBlock removes a block from those that prefixes may match.
func (p *peers) forgetBlock(t *term) {
	at := t.peer.Block.CIDR
	left := slices.DeleteFunc(p.blocks[at], func(other *term) bool { return other == t })
	if p.blocks[at] = left; len(left) == 0 {
		delete(p.blocks, at)
	}
}

// kindOf returns the kind of addresses in a prefix: of unknown pods if a node assigns pod
// addresses from it.
func (p *peers) kindOf(x *prefix) model.AddressKind {
	for outer := range p.around(x.Prefix) {
		if o, ok := p.prefixes[outer]; ok && o.ranges > 0 {
			return model.KindUnknown
		}
	}
	return model.KindKnown
}

// updateCovers joins prefixes that now match the same terms. If a cover is split, its
// largest part stays in place, so that few addresses move.
func (p *peers) updateCovers(changed map[*prefix]bool) {
	affected := make(map[*cover]bool)
	for x := range changed {
		if x.cover != nil {
			affected[x.cover] = true
		}
	}
	// Parts of the covers that change, by the terms that they now match.
	var moving []*prefix
	for c := range affected {
		delete(p.covers, coverKey(c.kind, c.bits))
	}
	sorted := slices.SortedFunc(maps.Keys(affected), func(a, b *cover) int { return cmp.Compare(a.first(), b.first()) })
	for _, c := range sorted {
		parts := make(map[string][]*prefix)
		sizes := make(map[string]int)
		for x := range c.prefixes {
			key := coverKey(x.kind, x.bits)
			parts[key] = append(parts[key], x)
			sizes[key] += 1 + x.entries.length
		}
		stays := slices.MaxFunc(slices.Sorted(maps.Keys(parts)), func(a, b string) int { return cmp.Compare(sizes[a], sizes[b]) })
		for key, part := range parts {
			if key != stays {
				moving = append(moving, part...)
			}
		}
		x := parts[stays][0]
		if c.kind != x.kind || !c.bits.sameOutside(x.bits, nil) {
			c.kind, c.bits = x.kind, slices.Clone(x.bits)
			for _, g := range c.groups {
				p.mark(g)
			}
		}
		switch twin := p.covers[stays]; {
		case twin == nil:
			p.covers[stays] = c
		case twin.size() < sizes[stays]:
			p.covers[stays] = c
			moving = append(moving, slices.Collect(maps.Keys(twin.prefixes))...)
		default:
			moving = append(moving, parts[stays]...)
		}
	}
	for x := range changed {
		if x.cover == nil {
			moving = append(moving, x)
		}
	}
	for _, x := range moving {
		p.enterCover(x)
	}
}

// first orders covers.
func (c *cover) first() string {
	least := ""
	for x := range c.prefixes {
		if s := x.String(); least == "" || s < least {
			least = s
		}
	}
	return least
}

// enterCover puts a prefix into the cover of the prefixes with the same terms.
func (p *peers) enterCover(x *prefix) {
	key := coverKey(x.kind, x.bits)
	c := p.covers[key]
	if c == nil {
		c = newCover()
		c.kind, c.bits = x.kind, slices.Clone(x.bits)
		p.covers[key] = c
	}
	if x.cover == c {
		return
	}
	if x.cover != nil {
		p.leaveCover(x)
	}
	x.cover = c
	c.prefixes[x] = true
	p.mark(p.group(p.outside, c))
	p.prefixesChanged = true
	for e := x.entries.head; e != nil; e = e.links[inPrefix].next {
		p.place(e)
	}
}

// leaveCover removes a prefix from its cover; its entries must be placed again.
func (p *peers) leaveCover(x *prefix) {
	c := x.cover
	x.cover = nil
	delete(c.prefixes, x)
	p.mark(p.group(p.outside, c))
	if key := coverKey(c.kind, c.bits); len(c.prefixes) == 0 && p.covers[key] == c {
		delete(p.covers, key)
	}
}
