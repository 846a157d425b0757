// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// buildTables works out the rows of every profile.
func (c *compiler) buildTables() {
	for _, p := range sortedProfiles(c.profiles) {
		t := &model.Table{ID: p.id}
		for _, d := range model.Directions {
			t.Sides[d] = c.buildSide(p, d)
		}
		c.tables[p.id] = t
	}
}

// buildSide finds the row of every class. Classes that match the same rules
// share a row.
func (c *compiler) buildSide(p *profile, d model.Direction) model.Side {
	b := sideBuilder{compiler: c, profile: p, direction: d, rows: make(map[string]*model.Row)}
	if p.pending {
		return model.Side{Default: c.uniformRow(model.Deny, &model.Cause{Reason: model.ReasonPending, Direction: d})}
	}
	rows := make(map[model.PeerClass]*model.Row, len(c.peerClasses))
	uses := make(map[*model.Row]int)
	for _, class := range c.peerClasses {
		r := b.row(class)
		rows[class.number] = r
		uses[r]++
	}
	side := model.Side{Default: mostUsedUniform(uses)}
	if side.Default == nil {
		side.Default = c.uniformRow(model.Deny, &model.Cause{Reason: model.ReasonPending, Direction: d})
	}
	for class, r := range rows {
		if r == side.Default {
			delete(rows, class)
		}
	}
	side.Rows = rows
	return side
}

// mostUsedUniform returns the row with one verdict for all ports that most
// classes have, or nil.
func mostUsedUniform(uses map[*model.Row]int) *model.Row {
	var best *model.Row
	for r, n := range uses {
		v, ok := r.Uniform()
		if !ok {
			continue
		}
		if best == nil || n > uses[best] || n == uses[best] && v < best.Cells[0].Verdict {
			best = r
		}
	}
	return best
}

func (c *compiler) uniformRow(v model.Verdict, cause *model.Cause) *model.Row {
	return &model.Row{Cells: slices.Repeat([]model.Decision{{Verdict: v, Cause: cause}}, len(c.portClasses))}
}

// sideBuilder makes the rows of one direction of one profile.
type sideBuilder struct {
	*compiler
	profile   *profile
	direction model.Direction
	rows      map[string]*model.Row
	key       []byte
}

// row returns the row of a class.
func (b *sideBuilder) row(class *peerClass) *model.Row {
	b.key = b.key[:0]
	named := false
	if b.direction == model.Ingress && class.kind == model.KindThisNode {
		// "Traffic is allowed to a pod if ... the traffic source is the pod's
		// local node" (NetworkPolicySpec.ingress).
		b.key = append(b.key, "node"...)
	} else {
		for _, r := range b.profile.rules[b.direction] {
			m := class.matchesPeers(r)
			b.key = append(b.key, '0'+byte(m))
			named = named || m != no && slices.ContainsFunc(r.Ports, func(m model.PortMatch) bool { return m.Name != "" })
		}
	}
	if named && b.direction == model.Egress {
		for _, n := range class.names {
			b.key = append(b.key, n...)
			b.key = append(b.key, '\n')
		}
		b.key = append(b.key, byte(class.kind))
	}
	if r, ok := b.rows[string(b.key)]; ok {
		return r
	}
	r := b.build(class)
	b.rows[string(b.key)] = r
	return r
}

func (b *sideBuilder) build(class *peerClass) *model.Row {
	if b.direction == model.Ingress && class.kind == model.KindThisNode {
		return b.uniformRow(model.Allow, &model.Cause{Reason: model.ReasonNode, Direction: model.Ingress})
	}
	r := &model.Row{Cells: make([]model.Decision, len(b.portClasses))}
	isolated, fallback := b.fallbacks()
	for n := range r.Cells {
		r.Cells[n] = b.decide(class, model.PortClass(n), isolated, fallback)
	}
	return r
}

// fallbacks returns the causes of the decisions that no rule gives: isolation,
// nil if no policy isolates, and the default.
func (b *sideBuilder) fallbacks() (isolated, fallback *model.Cause) {
	fallback = &model.Cause{Reason: model.ReasonDefault, Direction: b.direction}
	if p := b.profile.isolating(b.direction); p != nil {
		isolated = &model.Cause{Reason: model.ReasonIsolated, Origin: p.Origin, Tier: model.TierNetworkPolicy, Direction: b.direction}
	}
	return isolated, fallback
}

// decide resolves tiers, priorities and actions for one cell. The rules are in
// order of tier and priority, so one pass over them is enough.
func (b *sideBuilder) decide(class *peerClass, n model.PortClass, isolated, fallback *model.Cause) model.Decision {
	if n == overflowPorts {
		return model.Decision{Verdict: model.Deny, Cause: &model.Cause{Reason: model.ReasonPending, Direction: b.direction}}
	}
	passed := [3]bool{} // by tier
	for _, r := range b.profile.rules[b.direction] {
		if passed[r.tier] {
			continue
		}
		if r.tier == model.TierBaseline && isolated != nil {
			break // NetworkPolicies are final for the pods they isolate
		}
		m := min(class.matchesPeers(r), b.matchesPorts(r, class, n))
		switch {
		case m == no, m == maybe && r.Action == model.ActionAccept:
		case m == yes && r.Action == model.ActionPass:
			passed[r.tier] = true
		case m == yes && r.Action == model.ActionAccept:
			return model.Decision{Verdict: model.Allow, Cause: r.cause}
		default:
			return model.Decision{Verdict: model.Deny, Cause: r.cause}
		}
	}
	if isolated != nil {
		return model.Decision{Verdict: model.Deny, Cause: isolated}
	}
	return model.Decision{Verdict: model.Allow, Cause: fallback}
}

func (class *peerClass) matchesPeers(r compiledRule) match {
	if r.AnyPeer {
		return yes
	}
	m := no
	for _, t := range r.terms {
		m = max(m, class.matches[t])
	}
	return m
}

// matchesPorts reports whether the rule matches the ports of class n on the
// destination: the endpoint for ingress, the class's pods for egress.
func (b *sideBuilder) matchesPorts(r compiledRule, class *peerClass, n model.PortClass) match {
	if r.AnyPort {
		return yes
	}
	ports := b.portClasses[n]
	m := no
	for _, p := range r.Ports {
		switch {
		case p.Name == "":
			m = max(m, is(p.Protocol == ports.protocol && p.First <= ports.port && ports.port <= p.Last))
		case b.direction == model.Ingress:
			m = max(m, resolves(p, ports, b.profile.names))
		case class.kind == model.KindUnknown:
			if ports.protocol.HasPorts() && (p.Protocol == ports.protocol || p.Protocol == model.AnyProtocol) {
				m = max(m, maybe)
			}
		default:
			m = max(m, resolves(p, ports, class.ports))
		}
	}
	return m
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
