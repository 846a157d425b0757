// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

// assemble builds the State and shares everything that did not change with the State before.
// tables: some Tables changed. refused: the set of Tables that exceed the limits changed.
func (c *Compiler) assemble(in Input, d *difference, ch classChanges, tables, refused bool) *model.State {
	s := *c.state
	refreshSections(&s, d, in.Snapshot)
	c.assemblePolicy(&s.Policy, d, ch, tables, refused)
	return &s
}

// assemblePolicy brings the section of policy up to date.
func (c *Compiler) assemblePolicy(s *model.PolicyState, d *difference, ch classChanges, tables, refused bool) {
	p := c.peers
	if len(d.endpoints) > 0 || tables || refused || s.Tables == nil {
		s.Endpoints, s.Tables = c.assign(d.endpoints, refused)
	}
	s.Addresses = p.numberAddresses(s.Addresses, ch, c.limits.Addresses)
	if p.prefixesChanged || slices.ContainsFunc(ch.renumbered, func(g *group) bool { return g.owner == p.outside }) {
		s.Prefixes = p.numberPrefixes()
		p.prefixesChanged = false
	}
	if ch.described {
		s.PeerClasses = p.descriptions(s.PeerClasses, ch)
	}
	s.Ports, s.PortClasses = c.ports.ranges, c.ports.info
	s.PeerTerms, s.PeerNames = c.spoken.terms, c.spoken.names
	s.NextPeerClass = p.next
}

// assign lists the endpoints with their Tables: all of them, or only the dirty ones. An
// endpoint whose Table exceeds the limits gets closedTable.
func (c *Compiler) assign(dirty map[model.EndpointID]bool, all bool) (map[model.EndpointID]model.EndpointState, map[model.TableID]*model.Table) {
	tables := make(map[model.TableID]*model.Table, len(c.selected.profiles))
	for id, p := range c.selected.profiles {
		tables[id] = p.table
	}
	var closed model.TableID
	if len(c.refused) > 0 {
		t := closedTable()
		closed, tables[t.ID] = t.ID, t
	}
	for _, p := range c.refused {
		delete(tables, p.id)
	}
	endpoints := maps.Clone(c.state.Policy.Endpoints)
	if all || endpoints == nil {
		endpoints = make(map[model.EndpointID]model.EndpointState, len(c.selected.endpoints))
		dirty = make(map[model.EndpointID]bool, len(c.selected.endpoints))
		for id := range c.selected.endpoints {
			dirty[id] = true
		}
	}
	for id := range dirty {
		e, ok := c.selected.endpoints[id]
		if !ok {
			delete(endpoints, id)
			continue
		}
		t := e.profile.id
		if tables[t] == nil {
			t = closed
		}
		ns, _ := c.snapshot.Namespaces.Get(e.Pod.Namespace)
		endpoints[id] = model.EndpointState{Pod: e.Pod, IPs: e.IPs, Further: e.Further, Table: t, Observed: c.observe.Observes(ns)}
	}
	return endpoints, tables
}

// closedTable denies everything.
func closedTable() *model.Table {
	p := &profile{pending: true}
	t := &model.Table{ID: p.identity()}
	for _, d := range model.Directions {
		b := newSide(p, d)
		b.ports = &portSpace{}
		b.build(newClassIndex([]*class{{}}))
		t.Sides[d] = b.side
	}
	return t
}

// bulk is the share of changed addresses above which it is cheaper to rebuild the map of
// addresses than to change it.
const bulk = 4

// numberAddresses brings the map of addresses up to date.
func (p *peers) numberAddresses(m immutable.Map[netip.Addr, model.PeerClass], ch classChanges, most int) immutable.Map[netip.Addr, model.PeerClass] {
	moved, gone := p.moved, p.gone
	p.moved, p.gone = nil, nil
	n := len(gone) + len(moved)
	for _, g := range ch.renumbered {
		n += g.entries.length
	}
	if p.crowded || p.relist || n > len(p.entries)/bulk && n > 1000 {
		all := make(map[netip.Addr]model.PeerClass, len(p.entries))
		for a, e := range p.entries {
			all[a] = e.group.class.number
		}
		for _, a := range p.unlisted(most) {
			delete(all, a)
		}
		p.relist = false
		return immutable.MakeMap(all)
	}
	for _, a := range gone {
		if p.entries[a] == nil {
			m = m.Without(a)
		}
	}
	for _, e := range moved {
		if e.group != nil {
			m = m.With(e.addr, e.group.class.number)
		}
	}
	for _, g := range ch.renumbered {
		for e := g.entries.head; e != nil; e = e.links[inGroup].next {
			m = m.With(e.addr, g.class.number)
		}
	}
	return m
}

// unlisted picks the addresses to omit when there are too many: first those of other nodes,
// then the highest.
func (p *peers) unlisted(most int) []netip.Addr {
	if len(p.entries) <= most {
		return nil
	}
	rank := func(e *entry) int {
		switch {
		case e.owner.role != somePods:
			return 0
		case slices.ContainsFunc(e.pods, func(pod *model.Pod) bool { return pod.Node == p.node }):
			return 1
		}
		return 2
	}
	all := slices.SortedFunc(maps.Values(p.entries), func(a, b *entry) int { return cmp.Or(rank(a)-rank(b), a.addr.Compare(b.addr)) })
	var rest []netip.Addr
	for _, e := range all[most:] {
		rest = append(rest, e.addr)
	}
	return rest
}

// numberPrefixes lists the prefixes with their classes. It omits those of closed words that no other rule distinguishes
// from the addresses around them: what exceeds the limits of classes must not fill the maps of prefixes.
func (p *peers) numberPrefixes() []model.PrefixClass {
	number := func(x *prefix) model.PeerClass { return p.outside.groups[x.cover].class.number }
	all := make([]model.PrefixClass, 0, len(p.prefixes))
	for at, x := range p.prefixes {
		if len(p.closed) > 0 && number(x) == number(p.containing(at.Addr(), at.Bits()-1)) {
			continue
		}
		all = append(all, model.PrefixClass{Prefix: at, Class: number(x)})
	}
	slices.SortFunc(all, func(a, b model.PrefixClass) int { return model.ComparePrefixes(a.Prefix, b.Prefix) })
	return all
}

// descriptions lists the classes by number: was, with the changes applied.
func (p *peers) descriptions(was []model.PeerClassInfo, ch classChanges) []model.PeerClassInfo {
	all := make([]model.PeerClassInfo, 0, len(p.classes))
	if len(ch.added)+len(ch.dropped)+len(ch.stayed) > len(p.classes)/bulk {
		for _, class := range p.byNumber {
			all = append(all, class.info)
		}
		return all
	}
	changed := slices.SortedFunc(slices.Values(slices.Concat(ch.added, ch.dropped, ch.stayed)), compareClasses)
	for _, c := range changed {
		n, found := slices.BinarySearchFunc(was, c.number, func(i model.PeerClassInfo, n model.PeerClass) int { return cmp.Compare(i.Class, n) })
		all = append(all, was[:n]...)
		if was = was[n:]; found {
			was = was[1:]
		}
		if !c.gone {
			all = append(all, c.info)
		}
	}
	return append(all, was...)
}
