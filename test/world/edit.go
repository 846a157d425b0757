// SPDX-License-Identifier: Apache-2.0

package world

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// Edit is a policy that differs from another one in one field of one element.
type Edit struct {
	// Field names what differs, such as "egress rule 1 port 0: Last".
	Field  string
	Policy *model.Policy
}

// Edits lists every way to change one field of a policy: each value becomes
// another one that is valid, each list loses an element, gains one, or exchanges
// two. Fields that the API fixes, such as the tier of a NetworkPolicy, stay.
// The policy itself is not changed.
func Edits(p *model.Policy) []Edit {
	e := &editor{policy: p}
	e.add("Origin.UID", func(p *model.Policy) { p.Origin.UID += "2" })
	e.subject()
	if p.Tier == model.TierNetworkPolicy {
		for _, d := range model.Directions {
			e.add(fmt.Sprintf("Isolates %s", d), func(p *model.Policy) { p.Isolates[d] = !p.Isolates[d] })
		}
	} else {
		e.add("Tier", func(p *model.Policy) { p.Tier = next([]model.Tier{model.TierAdmin, model.TierBaseline}, p.Tier) })
		e.add("Priority", func(p *model.Policy) { p.Priority = (p.Priority + 1) % 4 })
	}
	for _, d := range model.Directions {
		for i := range p.Rules[d] {
			e.rule(d, i)
		}
		e.add(fmt.Sprintf("%s rules: one more", d), func(p *model.Policy) {
			p.Rules[d] = append(p.Rules[d], model.Rule{Index: len(p.Rules[d]), Action: model.ActionAccept, AnyPeer: true, AnyPort: true})
		})
	}
	return e.edits
}

// editor collects the edits of one policy.
type editor struct {
	policy *model.Policy
	edits  []Edit
}

func (e *editor) add(field string, change func(*model.Policy)) {
	c := clone(e.policy)
	change(c)
	for _, rules := range c.Rules {
		for i := range rules {
			rules[i].Index = i
		}
	}
	e.edits = append(e.edits, Edit{Field: field, Policy: c})
}

// clone copies a policy and every list in it. Selectors are immutable.
func clone(p *model.Policy) *model.Policy {
	c := *p
	for _, d := range model.Directions {
		c.Rules[d] = slices.Clone(p.Rules[d])
		for i := range c.Rules[d] {
			r := &c.Rules[d][i]
			r.Peers, r.Ports = slices.Clone(r.Peers), slices.Clone(r.Ports)
			for j := range r.Peers {
				r.Peers[j].Block.Except = slices.Clone(r.Peers[j].Block.Except)
			}
		}
	}
	return &c
}

func (e *editor) subject() {
	own := e.policy.Tier == model.TierNetworkPolicy // the API fixes the namespace
	e.podSelector("Subject", own, func(p *model.Policy) *model.PodSelector { return &p.Subject })
}

// podSelector edits a selector of pods. With fixed the namespace stays.
func (e *editor) podSelector(field string, fixed bool, of func(*model.Policy) *model.PodSelector) {
	was := of(e.policy)
	e.selector(field+".Pods", was.Pods, func(p *model.Policy, s model.Selector) { of(p).Pods = s })
	switch {
	case fixed:
	case was.Namespace != "":
		e.add(field+".Namespace", func(p *model.Policy) { of(p).Namespace = next([]string{"x", "y", "z"}, was.Namespace) })
		e.add(field+".Namespace: none", func(p *model.Policy) { of(p).Namespace = "" })
	default:
		e.add(field+".Namespace: one", func(p *model.Policy) { of(p).Namespace = "x" })
		e.selector(field+".Namespaces", was.Namespaces, func(p *model.Policy, s model.Selector) { of(p).Namespaces = s })
	}
}

// selector edits one requirement at a time.
func (e *editor) selector(field string, was model.Selector, set func(*model.Policy, model.Selector)) {
	put := func(what string, change func([]model.Requirement) []model.Requirement) {
		e.add(field+what, func(p *model.Policy) {
			rs := slices.Clone(was.Requirements())
			for i := range rs {
				rs[i].Values = slices.Clone(rs[i].Values)
			}
			set(p, model.MakeSelector(change(rs)...))
		})
	}
	put(": one requirement more", func(rs []model.Requirement) []model.Requirement {
		return append(rs, model.Requirement{Key: "tier", Operator: model.Exists})
	})
	for i, r := range was.Requirements() {
		name := fmt.Sprintf(" requirement %d", i)
		put(name+": none", func(rs []model.Requirement) []model.Requirement { return slices.Delete(rs, i, i+1) })
		put(name+": Key", func(rs []model.Requirement) []model.Requirement {
			rs[i].Key = next(keys, r.Key)
			return rs
		})
		put(name+": Operator", func(rs []model.Requirement) []model.Requirement {
			rs[i].Operator ^= 1 // In and NotIn, Exists and DoesNotExist
			return rs
		})
		if len(r.Values) > 0 {
			put(name+": Values", func(rs []model.Requirement) []model.Requirement {
				rs[i].Values[0] = next(values, r.Values[0])
				return rs
			})
		}
	}
}

func (e *editor) rule(d model.Direction, i int) {
	was, tier := &e.policy.Rules[d][i], e.policy.Tier
	name := fmt.Sprintf("%s rule %d", d, i)
	put := func(what string, change func(*model.Rule)) {
		e.add(name+what, func(p *model.Policy) { change(&p.Rules[d][i]) })
	}
	e.add(name+": none", func(p *model.Policy) { p.Rules[d] = slices.Delete(p.Rules[d], i, i+1) })
	if i > 0 {
		e.add(name+": exchanged with the one before", func(p *model.Policy) {
			p.Rules[d][i], p.Rules[d][i-1] = p.Rules[d][i-1], p.Rules[d][i]
		})
	}
	if tier != model.TierNetworkPolicy {
		put(": Name", func(r *model.Rule) { r.Name += "n" })
		for by := range model.Action(2) {
			put(fmt.Sprintf(": Action %d", by), func(r *model.Rule) { r.Action = (r.Action + 1 + by) % 3 })
		}
	}
	put(": AnyPeer", func(r *model.Rule) { r.AnyPeer, r.Peers = !r.AnyPeer, nil })
	put(": AnyPort", func(r *model.Rule) { r.AnyPort, r.Ports = !r.AnyPort, nil })
	for j := range was.Peers {
		e.peer(fmt.Sprintf("%s peer %d", name, j), was.Peers[j], func(p *model.Policy) *model.Peer { return &p.Rules[d][i].Peers[j] })
		put(fmt.Sprintf(" peer %d: none", j), func(r *model.Rule) { r.Peers = slices.Delete(r.Peers, j, j+1) })
	}
	for j := range was.Ports {
		e.port(fmt.Sprintf("%s port %d", name, j), was.Ports[j], func(p *model.Policy) *model.PortMatch { return &p.Rules[d][i].Ports[j] })
		put(fmt.Sprintf(" port %d: none", j), func(r *model.Rule) { r.Ports = slices.Delete(r.Ports, j, j+1) })
	}
}

func (e *editor) peer(name string, was model.Peer, of func(*model.Policy) *model.Peer) {
	if e.policy.Tier != model.TierNetworkPolicy {
		e.add(name+": Kind", func(p *model.Policy) {
			if *of(p) = (model.Peer{Kind: model.PeerUnknown}); was.Kind == model.PeerUnknown {
				of(p).Kind = model.PeerNodes
			}
		})
	}
	switch was.Kind {
	case model.PeerPods:
		e.podSelector(name+": Pods", false, func(p *model.Policy) *model.PodSelector { return &of(p).Pods })
	case model.PeerNodes:
		e.selector(name+": Nodes", was.Nodes, func(p *model.Policy, s model.Selector) { of(p).Nodes = s })
	case model.PeerBlock:
		e.block(name+": Block", was.Block, func(p *model.Policy) *model.IPBlock { return &of(p).Block })
	}
}

// block edits a block so that its holes stay inside.
func (e *editor) block(name string, was model.IPBlock, of func(*model.Policy) *model.IPBlock) {
	if bits := was.CIDR.Bits(); bits > 0 {
		e.add(name+".CIDR", func(p *model.Policy) { of(p).CIDR = netip.PrefixFrom(was.CIDR.Addr(), bits-1).Masked() })
	}
	if half, ok := firstHalf(was.CIDR); ok {
		e.add(name+".Except: one more", func(p *model.Policy) { of(p).Except = append(of(p).Except, half) })
	}
	for i, hole := range was.Except {
		e.add(fmt.Sprintf("%s.Except %d: none", name, i), func(p *model.Policy) { of(p).Except = slices.Delete(of(p).Except, i, i+1) })
		if half, ok := firstHalf(hole); ok {
			e.add(fmt.Sprintf("%s.Except %d", name, i), func(p *model.Policy) { of(p).Except[i] = half })
		}
	}
}

// firstHalf returns the lower half of a prefix of more than one address.
func firstHalf(p netip.Prefix) (netip.Prefix, bool) {
	return netip.PrefixFrom(p.Addr(), p.Bits()+1), !p.IsSingleIP()
}

func (e *editor) port(name string, was model.PortMatch, of func(*model.Policy) *model.PortMatch) {
	if was.Protocol != model.AnyProtocol {
		e.add(name+": Protocol", func(p *model.Policy) { of(p).Protocol = next(model.PortProtocols[:], was.Protocol) })
	}
	if was.Name != "" {
		e.add(name+": Name", func(p *model.Policy) { of(p).Name = next(names, was.Name) })
		return
	}
	if was.First < was.Last {
		e.add(name+": First", func(p *model.Policy) { of(p).First++ })
	}
	if was.Last < 65535 {
		e.add(name+": Last", func(p *model.Policy) { of(p).Last++ })
	}
}

// next returns the element after v, around the end; the first if v is not there.
func next[T comparable](of []T, v T) T { return of[(slices.Index(of, v)+1)%len(of)] }
