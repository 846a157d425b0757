// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"maps"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// Compiler compiles one State after another for one node. It caches derived data, so that a
// Compile costs time in proportion to the change since the last one. Its States share
// everything that did not change. It drops data of objects that no longer exist. One
// goroutine owns the Compiler; its States are immutable.
type Compiler struct {
	node     string
	limits   Limits
	observe  model.Observation
	snapshot *model.Snapshot
	selected *selection
	words    *vocabulary
	peers    *peers
	ports    *portSpace
	state    *model.State
	// refused are the profiles whose Tables exceed the limits; unsupported lists everything
	// that exceeds them.
	refused     []*profile
	unsupported []model.Unsupported
	spoken      words // the words of rules about peers
}

// New returns a Compiler without a previous State.
func New() *Compiler { return &Compiler{} }

// Compile computes the state that the node should enforce. Equal sequences of inputs give
// equal sequences of States. Each State decides like that of a Compiler that reads only the
// last input; only the numbers of classes may differ.
func (c *Compiler) Compile(in Input) (*model.State, []model.Unsupported) {
	inherits, first := in.Previous, c.state == nil || c.node != in.Node
	if limits := in.Limits.withDefaults(); !first && (limits != c.limits || in.Observe != c.observe) {
		inherits, first = c.state, true
	}
	if first {
		c.reset(in, inherits)
	} else {
		inherits = nil
	}
	d := c.changes(in)
	if !first && d.none() {
		return c.state, c.unsupported
	}
	c.snapshot, c.peers.cluster = in.Snapshot, in.Snapshot
	c.changePolicies(in, d)
	t := c.changeVocabulary()
	c.changePeers(d, t)
	ports := c.updatePorts()
	c.applyLimits(&t)
	classes := c.updatePeers(t, inherits)
	c.words.release(t.removed)
	tables := c.updateTables(classes, ports, len(d.endpoints) > 0)
	was := c.refused
	if tables || len(d.endpoints) > 0 || len(classes.added)+len(classes.dropped) > 0 {
		c.refused = c.refuse()
	}
	next := c.assemble(in, d, classes, tables, len(was)+len(c.refused) > 0)
	c.unsupported = slices.Concat(c.overflow(), sectionReports(next, in.Snapshot), c.enforcementReports(next, in.Snapshot))
	if sameState(next, c.state) {
		next = c.state
	}
	c.state = next
	return c.state, c.unsupported
}

// reset discards everything but the numbers of a State, if one is given.
func (c *Compiler) reset(in Input, inherits *model.State) {
	node := in.Node
	c.node, c.limits, c.observe = node, in.Limits.withDefaults(), in.Observe
	c.snapshot, c.state = &model.Snapshot{}, &model.State{Node: node}
	c.words = newVocabulary()
	c.selected = newSelection()
	c.peers = newPeers(node, c.words)
	c.ports = &portSpace{info: []model.PortClassInfo{{Class: model.OtherPorts}}}
	c.spoken = words{}
	if inherits != nil {
		c.peers.next = max(c.peers.next, inherits.Policy.NextPeerClass)
		c.ports = &portSpace{ranges: inherits.Policy.Ports, info: inherits.Policy.PortClasses}
	}
}

// changePolicies finds the policies of the endpoints and enters them in the vocabulary.
func (c *Compiler) changePolicies(in Input, d *difference) {
	for _, p := range d.policies {
		c.selected.policyChanged(p.was, p.is, in.Snapshot, d.endpoints)
	}
	for _, name := range d.namespaces {
		c.selected.namespaceChanged(name, in.Snapshot, d.endpoints)
	}
	c.selected.selectAgain(d.endpoints, in.Endpoints, in.Snapshot, c.words)
}

// changeVocabulary returns the change of the words of rules.
func (c *Compiler) changeVocabulary() turnover {
	t := turnover{before: c.spoken, after: c.spoken, namesChanged: c.words.namesChanged}
	c.words.namesChanged = false
	t.added, t.removed = c.words.changes()
	if len(t.added)+len(t.removed) > 0 || t.namesChanged {
		t.after = c.words.peerWords(c.spoken, t)
	}
	for _, list := range [][]*term{t.added, t.removed} {
		for _, term := range list {
			t.bits.set(term.bit, true)
		}
	}
	t.names = intersect(t.before.names, t.after.names)
	c.spoken = t.after
	return t
}

// changePeers brings terms, nodes, namespaces and pods up to date.
func (c *Compiler) changePeers(d *difference, t turnover) {
	p := c.peers
	for _, n := range d.nodes {
		p.useRanges(n.is, 1)
		p.useRanges(n.was, -1)
	}
	p.updateTerms(t.added, t.removed, t.namesChanged, c.spill(len(t.added)+len(t.removed) > 0 || p.rangesChanged))
	for _, name := range d.namespaces {
		p.namespaceChanged(name)
	}
	for _, n := range d.nodes {
		p.nodeChanged(n.was, n.is)
	}
	for _, pod := range d.pods {
		p.podChanged(pod.was, pod.wasIPs, pod.is, c.selected.addressesOf(pod.is))
	}
}

// portsChange is the change of the port classes.
type portsChange uint8

const (
	portsSame portsChange = iota
	// portsDiffer: rows must be adapted.
	portsDiffer
	// portsReread: the set of ranges that exceed the limits changed; all rows must be
	// rebuilt.
	portsReread
)

// updatePorts recomputes the port classes if they may have changed.
func (c *Compiler) updatePorts() portsChange {
	if !c.words.portsChanged && c.ports.classes != nil && len(c.ports.closed) == 0 {
		return portsSame
	}
	c.words.portsChanged = false
	open, closed := c.words.ranges, c.closedPorts()
	if len(closed) > 0 {
		open = maps.Clone(open)
		maps.DeleteFunc(open, func(r portRange, _ int) bool { return closed[r] })
	}
	was := c.ports
	c.ports = classifyPorts(open, was)
	c.ports.closed = closed
	if maps.Equal(closed, was.closed) {
		return portsDiffer
	}
	return portsReread
}

// applyLimits closes the words that exceed the limits, and opens those that fit again.
func (c *Compiler) applyLimits(t *turnover) {
	p := c.peers
	if crowded := len(p.entries) > c.limits.Addresses; crowded != p.crowded {
		p.crowded, p.relist = crowded, true
		p.useEverywhere(crowded)
		p.markAll()
	}
	closed := c.closedPeers()
	for term := range p.spilled {
		if closed == nil {
			closed = make(map[peerWord]bool)
		}
		closed[peerWord{term: term}] = true
	}
	if maps.Equal(closed, p.closed) {
		return
	}
	t.reread = true
	for _, m := range []map[peerWord]bool{closed, p.closed} {
		for w := range m {
			if w.term != nil {
				t.bits.set(w.term.bit, true)
			} else {
				delete(t.names, w.name)
			}
		}
	}
	p.close(closed)
	p.markAll()
}

// updatePeers finds the classes of addresses and their numbers.
func (c *Compiler) updatePeers(t turnover, previous *model.State) classChanges {
	var heirs func([]*bucket) []uint32
	if previous != nil {
		heirs = func(b []*bucket) []uint32 { return c.inheritPeers(b, previous) }
	}
	return c.peers.assignClasses(t, heirs)
}

// inheritPeers takes over the numbers of the classes of a State that another Compiler made.
func (c *Compiler) inheritPeers(buckets []*bucket, was *model.State) []uint32 {
	var found []signature
	for _, b := range buckets {
		info := c.peers.describe(&b.class)
		found = append(found, signature{b.kind, info.Terms, info.Names})
	}
	var previous []numbered
	for _, info := range was.Policy.PeerClasses {
		if info.Class != model.World {
			previous = append(previous, numbered{uint32(info.Class), signature{info.Kind, info.Terms, info.Names}})
		}
	}
	overlaps := func(i int) map[uint32]int { return buckets[i].membersOf(was) }
	return inherit(found, c.spoken, previous, words{was.Policy.PeerTerms, was.Policy.PeerNames}, overlaps)
}

// membersOf counts the members of a bucket by their class in another State.
func (b *bucket) membersOf(s *model.State) map[uint32]int {
	n := make(map[uint32]int)
	for _, g := range b.members {
		for e := g.entries.head; e != nil; e = e.links[inGroup].next {
			n[uint32(s.Policy.Class(e.addr))]++
		}
		if g.owner.role == external {
			for x := range g.cover.prefixes {
				n[uint32(s.Policy.PrefixClass(x.Prefix))]++
			}
		}
	}
	return n
}

// updateTables builds the tables of new profiles and brings the others up to date. Profiles
// are new only if endpoints changed. It reports whether any table changed.
func (c *Compiler) updateTables(ch classChanges, ports portsChange, endpoints bool) (changed bool) {
	if ports == portsSame && len(ch.added)+len(ch.dropped) == 0 && !ch.reread && !endpoints {
		return false
	}
	for _, b := range c.selected.sides {
		b.update(ch, ports, c.ports, c.peers)
	}
	for _, p := range c.selected.profiles {
		if p.table == nil || p.sides[0].changed || p.sides[1].changed {
			p.table = &model.Table{ID: p.id, Sides: [2]model.Side{p.sides[0].side, p.sides[1].side}}
			changed = true
		}
	}
	return changed
}
