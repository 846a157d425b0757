// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"encoding/binary"

	"github.com/isthmus-net/isthmus/common/model"
)

// side is the decisions of one version in one direction for pods with the same rules.
type side struct {
	view      *view
	direction model.Direction
	rules     [3][]*rule // by tier, in order
	// isolated: flows that no rule of the NetworkPolicy tier accepts are denied.
	isolated bool
	// names are the named ports of the pods, for ingress.
	names []model.NamedPort
	// content is a text that sides of all versions share if they have the same rules.
	content string
}

// pair is the sides of all versions for some pods and one direction.
type pair struct {
	sides []*side
	// same: the versions have the same rules.
	same bool
	// differ caches the groups to which versions give different verdicts; nil until it is
	// needed.
	differ set
}

// findSides finds the sides of all groups of pods.
func (f *family) findSides() {
	for n, e := range f.ends {
		g := f.groups[f.groupOf[n]]
		if e.member == nil || g.sides[0] != nil {
			continue
		}
		for _, d := range model.Directions {
			var key []byte
			p := &pair{same: true}
			for i, w := range f.views {
				s := w.side(i, e.pods[i], d)
				p.sides = append(p.sides, s)
				p.same = p.same && s.content == p.sides[0].content
				key = append(append(key, byte(d), byte(i)), s.content...)
			}
			if f.pairs[string(key)] == nil {
				f.pairs[string(key)] = p
			}
			g.sides[d] = f.pairs[string(key)]
		}
	}
}

// side returns the side of a pod.
func (w *view) side(i int, pod *model.Pod, d model.Direction) *side {
	policies := w.selecting[w.index[pod.PodID]]
	var content []byte
	for _, n := range policies {
		if text := w.policies[n].texts[d]; text != "" {
			content = binary.LittleEndian.AppendUint32(content, uint32(w.f.p.textID(text)))
		}
	}
	var names []model.NamedPort
	if d == model.Ingress {
		names = w.ingressPorts(policies, pod)
		content = appendPorts(append(content, "ports "...), names)
	}
	key := string(append([]byte{byte(i), byte(d)}, content...))
	if s := w.f.sides[key]; s != nil {
		return s
	}
	s := &side{view: w, direction: d, names: names, content: string(content)}
	for _, n := range policies {
		p := w.policies[n]
		s.isolated = s.isolated || p.Isolates[d]
		for _, r := range p.rules[d] {
			s.rules[p.Tier] = append(s.rules[p.Tier], w.rules[r])
		}
	}
	w.f.sides[key] = s
	return s
}

// findMoved finds the groups that a rule of all versions does not match alike in all of
// them.
func (f *family) findMoved() {
	f.moved = newSet(len(f.groups))
	first := f.views[0]
	for _, w := range f.views[1:] {
		for text, groups := range w.terms {
			if was := first.terms[text]; was != nil {
				f.moved.addChanged(was, groups)
			}
		}
		f.moved.addChanged(first.unsure, w.unsure)
		for n := range f.groups {
			if key := string(appendPorts(nil, first.ports[first.names[n]])); key != string(appendPorts(nil, w.ports[w.names[n]])) {
				f.moved.add(n)
			}
		}
	}
}

// decider decides for one side after the other; it belongs to one goroutine.
type decider struct {
	p *ports
	// Sets of cells. undecided have no decision yet; open are the undecided that have not
	// passed the tier. held are those that the tier can no longer accept, because they may
	// have passed. y and m are the certain and the possible matches of a rule.
	allowed, undecided, open, held, y, m set
}

func newDecider(p *ports) *decider {
	n := len(p.cells)
	return &decider{p, newSet(n), newSet(n), newSet(n), newSet(n), newSet(n), newSet(n)}
}

// decide returns the ports that a side allows to or from a group. It follows the API:
//
// The tiers apply in order. In the Admin and Baseline tiers the first rule that matches
// counts, and Pass leaves the tier. NetworkPolicies are additive and final for the pods that
// they isolate. Flows without a decision are allowed.
func (c *decider) decide(s *side, group int) PortsID {
	clear(c.allowed)
	copy(c.undecided, c.p.sets[c.p.all])
	c.ordered(s, model.TierAdmin, group)
	if s.isolated {
		for _, r := range s.rules[model.TierNetworkPolicy] {
			if !r.every && !r.yes.has(group) {
				continue // the rule accepts nothing, or it may not apply
			}
			c.match(s, r, group)
			c.y.intersect(c.undecided)
			c.allowed.union(c.y)
		}
		return c.p.id(c.allowed)
	}
	c.ordered(s, model.TierBaseline, group)
	c.allowed.union(c.undecided)
	return c.p.id(c.allowed)
}

func (c *decider) ordered(s *side, tier model.Tier, group int) {
	copy(c.open, c.undecided)
	clear(c.held)
	for _, r := range s.rules[tier] {
		sure := r.every || r.yes.has(group)
		if !sure && !r.maybe.has(group) {
			continue
		}
		c.match(s, r, group)
		if !sure {
			c.m.union(c.y)
			clear(c.y)
		}
		c.y.intersect(c.open)
		c.m.intersect(c.open)
		switch r.action {
		case model.ActionAccept:
			c.open.remove(c.y)
			c.y.remove(c.held)
			c.allowed.union(c.y)
			c.undecided.remove(c.y)
		case model.ActionMayPass:
			c.held.union(c.y)
			c.held.union(c.m)
		case model.ActionPass:
			// Uncertainty fails closed: a Pass rule that might match denies.
			c.undecided.remove(c.m)
			c.open.remove(c.m)
			c.open.remove(c.y)
		default:
			c.y.union(c.m)
			c.undecided.remove(c.y)
			c.open.remove(c.y)
		}
	}
}

// match finds the cells that a rule names: y certainly, and m possibly, besides y.
func (c *decider) match(s *side, r *rule, group int) {
	copy(c.y, r.ports)
	clear(c.m)
	switch {
	case r.anyPort || len(r.named) == 0:
	case s.direction == model.Ingress:
		r.addNamed(c.p, c.y, s.names)
	case s.view.unsure.has(group):
		r.addPossible(c.p, c.m)
		c.m.remove(c.y)
	default:
		r.addNamed(c.p, c.y, s.view.ports[s.view.names[group]])
	}
}
