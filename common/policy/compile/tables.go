// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

// sideBuilder maintains one direction of the Tables of all profiles that have the same rules
// in it. Classes that match the same rules share a row.
type sideBuilder struct {
	profiles  int // profiles that use it
	direction model.Direction
	pending   bool // for a pod that is not known: deny everything
	rules     []compiledRule
	terms     bitset // of the rules
	named     bool   // some rule has ports by name
	// isolated is the first NetworkPolicy that isolates; nil if there is none.
	isolated *compiledPolicy
	// names are the named ports of the pods, for ingress.
	names []model.NamedPort
	ports *portSpace
	peers *peers
	rows  map[string]*model.Row
	uses  map[*model.Row]*rowUse
	// rest is the row of World, which always exists, and of every class that no rule
	// distinguishes from it.
	rest    *model.Row
	restUse *rowUse
	side    model.Side
	// changed: the last update changed the side.
	changed bool
	// listed is the result of countListed plus the classes added since then whose row is not
	// the commonest. It is never too small.
	listed    int
	commonest *model.Row
	key       []byte
}

// rowUse counts the classes with a row.
type rowUse struct {
	key     string
	classes int
}

// newSide makes one direction of a profile, without rows.
func newSide(p *profile, d model.Direction) *sideBuilder {
	b := &sideBuilder{direction: d, pending: p.pending, isolated: p.isolating(d)}
	if d == model.Ingress {
		b.names = p.names
	}
	for _, c := range p.policies {
		b.rules = append(b.rules, c.rules[d]...)
	}
	for i := range b.rules {
		b.named = b.named || b.rules[i].named
		for _, t := range b.rules[i].terms {
			b.terms.set(t.bit, true)
		}
	}
	return b
}

// sideKey identifies one direction of profiles by the full text of everything that it
// depends on.
type sideKey [sha256.Size]byte

func (p *profile) sideKey(d model.Direction) sideKey {
	h := sha256.New()
	fmt.Fprintf(h, "%d %t\n", d, p.pending)
	if first := p.isolating(d); first != nil {
		h.Write(first.digest[:])
	}
	h.Write([]byte{'\n'})
	for _, c := range p.policies {
		if len(c.rules[d]) > 0 {
			h.Write(c.digest[:])
		}
	}
	h.Write([]byte{'\n'})
	if d == model.Ingress {
		writePorts(h, p.names)
	}
	return sideKey(h.Sum(nil))
}

// update brings the side up to date.
func (b *sideBuilder) update(ch classChanges, ports portsChange, space *portSpace, peers *peers) {
	b.changed = b.rows == nil || ports == portsReread || ch.reread
	if !b.changed {
		adapted := ports == portsDiffer && b.adapt(space)
		moved := len(ch.added)+len(ch.dropped) > 0 && b.change(ch)
		if b.changed = adapted || moved; !b.lopsided(len(peers.classes)) {
			return
		}
	}
	b.changed = true
	b.ports, b.peers = space, peers
	b.build(peers.index())
}

// build finds the row of every class. The row of most classes becomes the default. Classes
// that no rule of the side distinguishes from World have its row.
func (b *sideBuilder) build(classes *classIndex) {
	b.rows, b.uses = make(map[string]*model.Row), make(map[*model.Row]*rowUse)
	rest := b.row(classes.world)
	b.rest, b.restUse = rest, b.uses[rest]
	b.restUse.classes = len(classes.all)
	distinct := classes.distinguished(b.rules)
	rows := make([]*model.Row, len(distinct))
	for i, class := range distinct {
		rows[i] = b.row(class)
		b.uses[rest].classes--
		b.uses[rows[i]].classes++
	}
	b.side.Default = rest
	for _, r := range rows {
		if b.uses[r].classes > b.uses[b.side.Default].classes {
			b.side.Default = r
		}
	}
	listed := make(map[model.PeerClass]*model.Row)
	list := func(class *class, r *model.Row) {
		if r != b.side.Default {
			listed[class.number] = r
		}
	}
	if b.side.Default != rest {
		for _, class := range classes.all {
			list(class, rest)
		}
	}
	for i, class := range distinct {
		delete(listed, class.number)
		list(class, rows[i])
	}
	b.side.Rows = immutable.MakeMap(listed)
	b.countListed()
}

// distinguishes reports whether a rule of the side may distinguish the class from World.
func (b *sideBuilder) distinguishes(c *class) bool {
	return c.kind != model.KindKnown || b.named && len(c.names) > 0 || b.terms.meets(c.bits)
}

// change updates the rows for added and removed classes, and reports whether the side
// changed.
func (b *sideBuilder) change(ch classChanges) bool {
	was := b.side
	for _, class := range ch.dropped {
		r, use := b.rest, b.restUse
		if b.distinguishes(class) {
			r = b.side.Row(class.number)
			use = b.uses[r]
		}
		if r != b.side.Default {
			b.side.Rows = b.side.Rows.Without(class.number)
		}
		if r != b.commonest {
			b.listed--
		}
		if use.classes--; use.classes == 0 && r != b.side.Default {
			delete(b.rows, use.key)
			delete(b.uses, r)
		}
	}
	for _, class := range ch.added {
		r, use := b.rest, b.restUse
		if b.distinguishes(class) {
			r = b.row(class)
			use = b.uses[r]
		}
		use.classes++
		if r != b.commonest {
			b.listed++
		}
		if r != b.side.Default {
			b.side.Rows = b.side.Rows.With(class.number, r)
		}
	}
	return b.side != was
}

// countListed counts the classes whose row is not the commonest of those with one verdict
// for all ports.
func (b *sideBuilder) countListed() int {
	b.commonest, b.listed = nil, 0
	most := 0
	for r, use := range b.uses {
		b.listed += use.classes
		if _, uniform := r.Uniform(); uniform && use.classes > most {
			b.commonest, most = r, use.classes
		}
	}
	b.listed -= most
	return b.listed
}

// lopsided reports whether another default would need far fewer rows.
func (b *sideBuilder) lopsided(classes int) bool {
	return b.side.Rows.Len() > 64 && b.side.Rows.Len() > classes*3/4 && len(b.rows) < b.side.Rows.Len()/4
}

// adapt updates the cells of all rows for the port classes, and reports whether the side
// changed.
func (b *sideBuilder) adapt(ports *portSpace) bool {
	b.ports = ports
	next := make(map[*model.Row]*model.Row)
	for key, r := range b.rows {
		if n := ports.adapt(r); n != r {
			next[r] = n
			b.rows[key] = n
			b.uses[n] = b.uses[r]
			delete(b.uses, r)
		}
	}
	if len(next) == 0 {
		return false
	}
	if n := next[b.side.Default]; n != nil {
		b.side.Default = n
	}
	if n := next[b.rest]; n != nil {
		b.rest = n
	}
	for class, r := range b.side.Rows.All() {
		if n := next[r]; n != nil {
			b.side.Rows = b.side.Rows.With(class, n)
		}
	}
	b.countListed()
	return true
}

// row returns the row of a class.
func (b *sideBuilder) row(class *class) *model.Row {
	b.key = b.key[:0]
	named := false
	switch {
	case b.pending:
	case b.direction == model.Ingress && class.kind == model.KindThisNode:
		// "Traffic is allowed to a pod if ... the traffic source is the pod's
		// local node" (NetworkPolicySpec.ingress).
		b.key = append(b.key, "node"...)
	default:
		for i := range b.rules {
			m := class.matchesPeers(&b.rules[i], b.peers)
			b.key = append(b.key, '0'+byte(m))
			named = named || m != no && b.direction == model.Egress && b.rules[i].named
		}
	}
	if named {
		for _, n := range class.texts {
			b.key = append(append(b.key, n...), '\n')
		}
		b.key = append(b.key, byte(class.kind))
	}
	if r, ok := b.rows[string(b.key)]; ok {
		return r
	}
	r := &model.Row{Cells: trim(b.cells(class))}
	key := string(b.key)
	b.rows[key] = r
	b.uses[r] = &rowUse{key: key}
	return r
}

func (b *sideBuilder) cells(class *class) []model.Decision {
	uniform := func(v model.Verdict, reason model.Reason) []model.Decision {
		return []model.Decision{{Verdict: v, Cause: &model.Cause{Reason: reason, Direction: b.direction}}}
	}
	if b.pending {
		return uniform(model.Deny, model.ReasonPending)
	}
	if b.direction == model.Ingress && class.kind == model.KindThisNode {
		return uniform(model.Allow, model.ReasonNode)
	}
	d := decider{sideBuilder: b, class: class, fallback: &model.Cause{Reason: model.ReasonDefault, Direction: b.direction}}
	if p := b.isolated; p != nil {
		d.isolated = &model.Cause{Reason: model.ReasonIsolated, Origin: p.Origin, Tier: model.TierNetworkPolicy, Direction: b.direction}
	}
	for i := range b.rules {
		if m := class.matchesPeers(&b.rules[i], b.peers); m != no {
			d.rules = append(d.rules, peerMatch{&b.rules[i], m})
		}
	}
	cells := make([]model.Decision, len(b.ports.classes))
	for n, ports := range b.ports.classes {
		if ports.used {
			cells[n] = d.decide(ports)
		} else {
			cells[n] = cells[model.OtherPorts]
		}
	}
	return cells
}

// decider computes the cells of one row.
type decider struct {
	*sideBuilder
	class *class
	// rules are those whose peers match, or might match.
	rules []peerMatch
	// isolated is the cause if NetworkPolicies isolate and none accepts; nil if none
	// isolates. fallback is the cause of the default.
	isolated, fallback *model.Cause
}

type peerMatch struct {
	*compiledRule
	peer match
}

// decide resolves tiers, priorities and actions for one cell. The rules are in order of tier
// and priority, so one pass is enough.
func (d *decider) decide(ports portClass) model.Decision {
	var passed, mayHavePassed [3]bool // by tier
	for _, r := range d.rules {
		if passed[r.tier] {
			continue
		}
		if r.tier == model.TierBaseline && d.isolated != nil {
			break // NetworkPolicies are final for the pods they isolate
		}
		m := min(r.peer, d.matchesPorts(r.compiledRule, ports))
		switch {
		case m == no, m == maybe && r.Action == model.ActionAccept:
		case r.Action == model.ActionMayPass:
			mayHavePassed[r.tier] = true
		case m == yes && (r.Action == model.ActionPass || r.Action == model.ActionAccept && mayHavePassed[r.tier]):
			passed[r.tier] = true
		case m == yes && r.Action == model.ActionAccept:
			return model.Decision{Verdict: model.Allow, Cause: r.cause}
		default:
			return model.Decision{Verdict: model.Deny, Cause: r.cause}
		}
	}
	if d.isolated != nil {
		return model.Decision{Verdict: model.Deny, Cause: d.isolated}
	}
	return model.Decision{Verdict: model.Allow, Cause: d.fallback}
}

// matchesPeers is the answer of a rule for the class. A rule may name thousands of blocks, and each may be a class of
// its own, so it visits only terms that can answer maybe.
func (c *class) matchesPeers(r *compiledRule, p *peers) match {
	if r.AnyPeer || c.bits.meets(r.bits) {
		return yes
	}
	if r.bits.meets(p.closedBits) {
		return maybe
	}
	m := no
	for _, t := range r.unsure {
		m = max(m, c.match(t))
	}
	return m
}

// matchesPorts reports whether the rule matches the ports on the destination: the endpoint
// for ingress, the class's pods for egress.
func (d *decider) matchesPorts(r *compiledRule, ports portClass) match {
	if r.AnyPort {
		return yes
	}
	m := no
	for _, p := range r.Ports {
		switch {
		case d.mightMatch(p):
			m = max(m, maybe)
		case p.Name == "":
			m = max(m, is(p.Protocol == ports.protocol && p.First <= ports.port && ports.port <= p.Last))
		case d.direction == model.Ingress:
			m = max(m, resolves(p, ports, d.names))
		case d.class.kind == model.KindUnknown:
			if ports.protocol.HasPorts() && (p.Protocol == ports.protocol || p.Protocol == model.AnyProtocol) {
				m = max(m, maybe)
			}
		default:
			m = max(m, resolves(p, ports, d.class.names))
		}
	}
	return m
}

// mightMatch reports whether the rule might match because its ports exceed the limits.
func (d *decider) mightMatch(p model.PortMatch) bool {
	closed := d.ports.closed
	if p.Name == "" {
		return closed[portRange{p.Protocol, p.First, p.Last}]
	}
	names := d.names
	if d.direction == model.Egress {
		names = d.class.names
		if d.peers.nameClosed(p) || len(closed) > 0 && d.class.kind == model.KindUnknown {
			return true
		}
	}
	return len(closed) > 0 && slices.ContainsFunc(names, func(n model.NamedPort) bool {
		return n.Name == p.Name && closed[portRange{n.Protocol, n.Port, n.Port}]
	})
}

// resolves reports whether the name stands for the ports of the class.
func resolves(m model.PortMatch, ports portClass, names []model.NamedPort) match {
	for _, n := range names {
		if n.Name == m.Name && (m.Protocol == model.AnyProtocol || m.Protocol == n.Protocol) &&
			n.Protocol == ports.protocol && n.Port == ports.port {
			return yes
		}
	}
	return no
}

// hasNames reports whether a rule names ports by name.
func hasNames(ports []model.PortMatch) bool {
	return slices.ContainsFunc(ports, func(m model.PortMatch) bool { return m.Name != "" })
}
