// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sort"

	"github.com/isthmus-net/isthmus/common/model"
)

// Limits bounds the State of one node. The compiler denies and reports what exceeds them. It
// starts with the rules of the largest policies, so that one policy does not use up the room
// of others. Zero fields stand for DefaultLimits.
type Limits struct {
	// PeerClasses bounds the sets of addresses that rules distinguish. A peer beyond the
	// limit might be any address: by it Accept rules match nothing, and Deny and Pass rules
	// deny everything.
	PeerClasses int
	// Overlaps bounds the pairs of an address block and a prefix in its CIDR, those of rules and of nodes. A rule beyond the
	// limit is treated in the same way. 10,000 exceptions of one CIDR, each in a block of its own, make 100 million.
	Overlaps int
	// PortClasses bounds the sets of ports, in the same way; at most model.MaxPortClasses-1.
	PortClasses int
	// Rows bounds the rows of all Tables: one for every class whose row is not the commonest
	// of those with one verdict for all ports. Tables bounds the number of Tables that
	// policies make. A Table beyond the limits denies everything.
	Rows, Tables int
	// Addresses bounds the addresses with a class of their own. Those of nodes and local
	// endpoints come first. If some exceed the limit, every address that is not listed might
	// belong to any pod.
	Addresses int
}

// DefaultLimits is close to the capacity of the data paths.
func DefaultLimits() Limits {
	return Limits{PeerClasses: 65536, Overlaps: 1 << 21, PortClasses: model.MaxPortClasses - 1, Rows: 1 << 20, Tables: 8192, Addresses: 1 << 18}
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	for _, f := range []struct{ limit, standard *int }{
		{&l.PeerClasses, &d.PeerClasses}, {&l.Overlaps, &d.Overlaps}, {&l.PortClasses, &d.PortClasses},
		{&l.Rows, &d.Rows}, {&l.Tables, &d.Tables}, {&l.Addresses, &d.Addresses},
	} {
		if *f.limit <= 0 {
			*f.limit = *f.standard
		}
	}
	l.PortClasses = min(l.PortClasses, model.MaxPortClasses-1)
	return l
}

// claim is the words that one rule needs.
type claim[T comparable] struct {
	policy *compiledPolicy
	d      model.Direction
	rule   *compiledRule
	wants  []T
}

// claims lists the needs of the rules of this node, the smallest policies first.
func claims[T comparable](compiled map[digest]*compiledPolicy, wants func(*compiledPolicy, model.Direction, *compiledRule) []T) []claim[T] {
	var all []claim[T]
	size := make(map[*compiledPolicy]int)
	for _, p := range compiled {
		for _, d := range model.Directions {
			for i := range p.rules[d] {
				c := claim[T]{p, d, &p.rules[d][i], wants(p, d, &p.rules[d][i])}
				size[p] += len(c.wants)
				all = append(all, c)
			}
		}
	}
	slices.SortFunc(all, func(a, b claim[T]) int {
		return cmp.Or(cmp.Compare(size[a.policy], size[b.policy]), a.policy.Origin.Compare(b.policy.Origin),
			cmp.Compare(a.d, b.d), cmp.Compare(a.rule.Index, b.rule.Index))
	})
	return all
}

// admit returns the needs of the first claims, as many as fit.
func admit[T comparable](all []claim[T], fits func(map[T]bool) bool) map[T]bool {
	first := func(n int) map[T]bool {
		wanted := make(map[T]bool)
		for _, c := range all[:n] {
			for _, w := range c.wants {
				wanted[w] = true
			}
		}
		return wanted
	}
	n := sort.Search(len(all), func(n int) bool { return !fits(first(n + 1)) })
	return first(n)
}

// closedPorts finds the ranges of ports that exceed the limit.
func (c *Compiler) closedPorts() map[portRange]bool {
	// Every range adds at most two pieces.
	if 2*len(c.words.ranges)+1 <= c.limits.PortClasses || portsFit(c.words.ranges, c.limits.PortClasses) {
		return nil
	}
	admitted := admit(c.portClaims(), func(wanted map[portRange]bool) bool {
		ranges := make(map[portRange]int, len(wanted))
		for r := range wanted {
			ranges[r] = 1
		}
		return portsFit(ranges, c.limits.PortClasses)
	})
	closed := make(map[portRange]bool)
	for r := range c.words.ranges {
		if !admitted[r] {
			closed[r] = true
		}
	}
	return closed
}

func (c *Compiler) portClaims() []claim[portRange] {
	ingress, egress := make(map[model.NamedPort]bool), make(map[model.NamedPort]bool)
	for _, p := range c.selected.profiles {
		for _, n := range p.names {
			ingress[n] = true
		}
	}
	for _, o := range c.peers.owners {
		for _, n := range o.names {
			egress[n] = true
		}
	}
	return claims(c.selected.compiled, func(p *compiledPolicy, d model.Direction, r *compiledRule) []portRange {
		var wants []portRange
		for _, m := range r.Ports {
			named := ingress
			if d == model.Egress {
				named = egress
			}
			if m.Name == "" {
				wants = append(wants, portRange{m.Protocol, m.First, m.Last})
				continue
			}
			for n := range named {
				if n.Name == m.Name && (m.Protocol == model.AnyProtocol || m.Protocol == n.Protocol) {
					wants = append(wants, portRange{n.Protocol, n.Port, n.Port})
				}
			}
			for _, proto := range model.PortProtocols {
				if d == model.Egress && p.Tier != model.TierNetworkPolicy && (m.Protocol == proto || m.Protocol == model.AnyProtocol) {
					wants = append(wants, portRange{proto, 0, 65535})
				}
			}
		}
		return wants
	})
}

// spill finds the blocks that exceed the limit of overlaps, before any prefix is matched. changed says that the terms or
// the ranges of nodes did.
func (c *Compiler) spill(changed bool) map[*term]bool {
	p := c.peers
	if changed {
		var all []*term
		for _, t := range c.words.slots {
			if t != nil && t.uses > 0 && t.peer.Kind == model.PeerBlock {
				all = append(all, t)
			}
		}
		p.overlapping = !p.overlapsFit(slices.Values(all), c.limits.Overlaps)
	}
	if !p.overlapping {
		return nil
	}
	every := claims(c.selected.compiled, func(_ *compiledPolicy, _ model.Direction, r *compiledRule) []*term {
		return slices.DeleteFunc(slices.Clone(r.terms), func(t *term) bool { return t.peer.Kind != model.PeerBlock })
	})
	spilled := make(map[*term]bool)
	for _, claim := range every {
		for _, t := range claim.wants {
			spilled[t] = true
		}
	}
	for t := range admit(every, func(wanted map[*term]bool) bool { return p.overlapsFit(maps.Keys(wanted), c.limits.Overlaps) }) {
		delete(spilled, t)
	}
	return spilled
}

// overlapsFit reports whether there are at most so many pairs of a block and a prefix in its CIDR.
func (p *peers) overlapsFit(blocks iter.Seq[*term], most int) bool {
	within, known := make(map[netip.Prefix]int), make(map[netip.Prefix]bool)
	terms := 0
	for t := range blocks {
		terms++
		within[t.peer.Block.CIDR]++
		known[t.peer.Block.CIDR] = true
		for _, e := range t.peer.Block.Except {
			known[e] = true
		}
	}
	for at, x := range p.prefixes {
		if x.ranges > 0 {
			known[at] = true
		}
	}
	if terms*len(known) <= most {
		return true
	}
	var lengths [2]map[int]bool
	for f := range lengths {
		lengths[f] = make(map[int]bool)
	}
	for at := range within {
		lengths[family(at.Addr())][at.Bits()] = true
	}
	pairs := 0
	for at := range known {
		for bits := range lengths[family(at.Addr())] {
			if bits <= at.Bits() {
				pairs += within[netip.PrefixFrom(at.Addr(), bits).Masked()]
			}
		}
		if pairs > most {
			return false
		}
	}
	return true
}

// closedPeers finds the terms and port names that exceed the limit of peer classes, as
// words: the texts of terms, and names.
func (c *Compiler) closedPeers() map[peerWord]bool {
	p := c.peers
	if len(p.closed) == 0 && len(p.classes)+len(p.marked) <= c.limits.PeerClasses || p.countClasses(nil) <= c.limits.PeerClasses {
		return nil
	}
	every := claims(c.selected.compiled, func(_ *compiledPolicy, d model.Direction, r *compiledRule) []peerWord {
		var wants []peerWord
		for _, t := range r.terms {
			wants = append(wants, peerWord{term: t})
		}
		for _, m := range r.Ports {
			if d == model.Egress && m.Name != "" {
				wants = append(wants, peerWord{name: m.Name})
			}
		}
		return wants
	})
	closed := make(map[peerWord]bool)
	for _, claim := range every {
		for _, w := range claim.wants {
			closed[w] = true
		}
	}
	for w := range admit(every, func(wanted map[peerWord]bool) bool {
		rest := maps.Clone(closed)
		for w := range wanted {
			delete(rest, w)
		}
		return p.countClasses(rest) <= c.limits.PeerClasses
	}) {
		delete(closed, w)
	}
	return closed
}

// peerWord is a term or port name by which rules distinguish peers.
type peerWord struct {
	term *term
	name string
}

// countClasses counts the classes that would exist without some words.
func (p *peers) countClasses(closed map[peerWord]bool) int {
	was := p.closed
	defer p.close(was)
	p.close(closed)
	distinct := make(map[string]bool)
	count := func(c *cover) {
		for _, g := range c.groups {
			if p.weight(g) > 0 {
				m := p.meaning(g)
				distinct[m.key] = true
			}
		}
	}
	count(p.nowhere.cover)
	for _, c := range p.covers {
		count(c)
	}
	return len(distinct)
}

// close sets the words that are not used.
func (p *peers) close(closed map[peerWord]bool) {
	for w := range p.closed {
		if w.term != nil {
			w.term.closed = false
		}
	}
	p.closed, p.closedBits = closed, nil
	for w := range closed {
		if w.term != nil {
			w.term.closed = true
			p.closedBits.set(w.term.bit, true)
		}
	}
}

// refuse finds the profiles whose Tables exceed the limits: those that list the most rows.
func (c *Compiler) refuse() []*profile {
	total := 0
	for _, p := range c.selected.profiles {
		total += p.sides[0].listed + p.sides[1].listed
	}
	if len(c.selected.profiles) <= c.limits.Tables && total <= c.limits.Rows {
		return nil
	}
	rows := make(map[*profile]int, len(c.selected.profiles))
	total = 0
	for _, p := range c.selected.profiles {
		rows[p] = p.sides[0].countListed() + p.sides[1].countListed()
		total += rows[p]
	}
	if len(c.selected.profiles) <= c.limits.Tables && total <= c.limits.Rows {
		return nil
	}
	// The Table of pods that no policy selects is never refused.
	maps.DeleteFunc(rows, func(p *profile, _ int) bool { return len(p.policies) == 0 })
	all := slices.SortedFunc(maps.Keys(rows), func(a, b *profile) int { return cmp.Or(cmp.Compare(rows[a], rows[b]), compareTables(a.id, b.id)) })
	total = 0
	for i, p := range all {
		if total += rows[p]; total > c.limits.Rows || i >= c.limits.Tables {
			return all[i:]
		}
	}
	return nil
}

// overflow reports everything that exceeds the limits, by policy and rule.
func (c *Compiler) overflow() []model.Unsupported {
	if len(c.ports.closed)+len(c.peers.closed)+len(c.refused) == 0 && !c.peers.crowded {
		return nil
	}
	var all []model.Unsupported
	report := func(p *compiledPolicy, d model.Direction, rule int, construct, reason string) {
		all = append(all, model.Unsupported{Policy: p.Origin, Direction: d, Rule: rule, Construct: construct, Effect: model.OverBlocks, Reason: reason})
	}
	if len(c.ports.closed) > 0 {
		reason := fmt.Sprintf("the policies on this node distinguish more than %d sets of ports; an Accept rule does not match by ports over the "+
			"limit, other rules deny; use fewer distinct ports and ranges", c.limits.PortClasses)
		for _, u := range c.portClaims() {
			if slices.ContainsFunc(u.wants, func(r portRange) bool { return c.ports.closed[r] }) {
				report(u.policy, u.d, u.rule.Index, "ports", reason)
			}
		}
	}
	overlaps := fmt.Sprintf("the address blocks of policies on this node contain prefixes of each other more than %d times; an Accept rule does not match "+
		"by blocks over the limit, other rules deny; use fewer blocks that contain one another", c.limits.Overlaps)
	reason := fmt.Sprintf("the policies on this node distinguish more than %d sets of peers; an Accept rule does not match by peers over the "+
		"limit, other rules deny; use fewer distinct selectors and blocks", c.limits.PeerClasses)
	crowded := fmt.Sprintf("the cluster has more than %d addresses of pods and nodes; an address over the limit might be any pod's: an Accept "+
		"rule does not match it by pod, other rules deny it", c.limits.Addresses)
	for _, u := range claims(c.selected.compiled, func(_ *compiledPolicy, _ model.Direction, r *compiledRule) []*term { return r.terms }) {
		if slices.ContainsFunc(u.wants, func(t *term) bool { return c.peers.spilled[t] }) {
			report(u.policy, u.d, u.rule.Index, "peers", overlaps)
		} else if slices.ContainsFunc(u.wants, func(t *term) bool { return t.closed }) ||
			u.d == model.Egress && slices.ContainsFunc(u.rule.Ports, c.peers.nameClosed) {
			report(u.policy, u.d, u.rule.Index, "peers", reason)
		}
		if c.peers.crowded && (u.d == model.Egress && u.rule.named || slices.ContainsFunc(u.wants, func(t *term) bool { return t.peer.Kind == model.PeerPods })) {
			report(u.policy, u.d, u.rule.Index, "addresses", crowded)
		}
	}
	over := make(map[*compiledPolicy]bool)
	for _, p := range c.refused {
		for _, policy := range p.policies {
			over[policy] = true
		}
	}
	for p := range over {
		report(p, model.Ingress, -1, "rows", fmt.Sprintf("the policies on this node need more than %d tables or %d rows in them; pods that the policy "+
			"selects are denied everything; use fewer rules that distinguish peers", c.limits.Tables, c.limits.Rows))
	}
	slices.SortFunc(all, func(a, b model.Unsupported) int {
		return cmp.Or(a.Policy.Compare(b.Policy), cmp.Compare(a.Direction, b.Direction), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Construct, b.Construct))
	})
	return all
}

func (p *peers) nameClosed(m model.PortMatch) bool {
	return m.Name != "" && p.closed[peerWord{name: m.Name}]
}
