// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// Evaluator is the reference semantics over one snapshot.
type Evaluator struct {
	snapshot *model.Snapshot
	policies []*model.Policy
	owners   model.Owners
	// selected: all policies in the list select the pod of the query.
	selected bool
}

// NewEvaluator prepares a snapshot: it resolves the owner of each address and sorts the
// policies.
func NewEvaluator(s *model.Snapshot) *Evaluator {
	return &Evaluator{snapshot: s, policies: s.SortedPolicies(), owners: s.Owners()}
}

// With returns an evaluator of the same cluster with other policies, in any order.
func (e *Evaluator) With(policies []*model.Policy) *Evaluator {
	c := *e
	c.policies, c.selected = slices.SortedFunc(slices.Values(policies), model.ComparePolicies), false
	return &c
}

// Selects reports whether a selector of pods selects a pod.
func (e *Evaluator) Selects(s model.PodSelector, pod *model.Pod) bool { return e.selects(s, pod) }

// Flow decides a new connection at both ends. An end whose address belongs to no pod with
// policies allows. The connection is allowed if both ends allow it.
func (e *Evaluator) Flow(f model.Flow) (egress, ingress model.Decision) {
	egress = model.Decision{Verdict: model.Allow, Cause: &model.Cause{Direction: model.Egress}}
	ingress = model.Decision{Verdict: model.Allow, Cause: &model.Cause{Direction: model.Ingress}}
	if src, ok := e.owners.Pods[f.Src]; ok {
		egress = e.Endpoint(src, model.Egress, f.Dst, f.Protocol, f.Port)
	}
	if dst, ok := e.owners.Pods[f.Dst]; ok {
		ingress = e.Endpoint(dst, model.Ingress, f.Src, f.Protocol, f.Port)
	}
	return egress, ingress
}

// Endpoint decides one direction of one pod for a new connection from or to a
// remote address. port is the destination port: the pod's own for ingress, the
// remote side's for egress.
func (e *Evaluator) Endpoint(pod *model.Pod, d model.Direction, remote netip.Addr, p model.Protocol, port uint16) model.Decision {
	// "Note that a pod cannot block access to itself" (NetworkPolicy).
	if slices.Contains(pod.IPs, remote) {
		return model.Decision{Verdict: model.Allow, Cause: &model.Cause{Reason: model.ReasonSelf, Direction: d}}
	}
	return e.endpoint(question{pod: pod, direction: d, remote: e.remote(remote), protocol: p, port: port})
}

// endpoint is Endpoint for a remote address that is not the pod's own.
func (e *Evaluator) endpoint(q question) model.Decision {
	d, r := q.direction, q.remote
	// "Traffic is allowed to a pod if ... the traffic source is the pod's local
	// node" (NetworkPolicySpec.ingress).
	if d == model.Ingress && r.pod == nil && r.node != nil && r.node.Name == q.pod.Node {
		return model.Decision{Verdict: model.Allow, Cause: &model.Cause{Reason: model.ReasonNode, Direction: d}}
	}
	if !q.pod.Policed() {
		return model.Decision{Verdict: model.Allow, Cause: &model.Cause{Direction: d}}
	}
	if decision, ok := e.ordered(model.TierAdmin, q); ok {
		return decision
	}
	if decision, ok := e.additive(q); ok {
		return decision
	}
	if decision, ok := e.ordered(model.TierBaseline, q); ok {
		return decision
	}
	return model.Decision{Verdict: model.Allow, Cause: &model.Cause{Reason: model.ReasonDefault, Direction: d}}
}

// question is the flow that rules are evaluated for.
type question struct {
	pod       *model.Pod
	direction model.Direction
	remote    remote
	protocol  model.Protocol
	port      uint16
}

// remote is the remote address and its owner, if it has one.
type remote struct {
	addr netip.Addr
	pod  *model.Pod
	node *model.Node
	// unknown: the address belongs to a pod that is not known yet.
	unknown bool
}

func (e *Evaluator) remote(a netip.Addr) remote {
	r := remote{addr: a, pod: e.owners.Pods[a], node: e.owners.Nodes[a]}
	if r.pod == nil && r.node == nil {
		r.unknown = e.snapshot.PodRange(a)
	}
	return r
}

// ordered evaluates the Admin or Baseline tier: the first rule that matches counts, by
// priority of the policies and then by order of the rules. It returns false if no rule
// matches or a Pass rule ends the tier.
func (e *Evaluator) ordered(tier model.Tier, q question) (model.Decision, bool) {
	mayHavePassed := false
	for _, p := range e.policies {
		if p.Tier != tier || !e.applies(p, q.pod) {
			continue
		}
		for _, r := range p.Rules[q.direction] {
			m := e.matches(r, q)
			switch {
			case m == no, m == maybe && r.Action == model.ActionAccept:
				continue
			case r.Action == model.ActionMayPass:
				mayHavePassed = true
				continue
			case m == yes && (r.Action == model.ActionPass || r.Action == model.ActionAccept && mayHavePassed):
				return model.Decision{}, false
			case m == yes && r.Action == model.ActionAccept:
				return model.Decision{Verdict: model.Allow, Cause: ruleCause(p, r, q.direction)}, true
			}
			// A Deny rule matches, or a Pass rule might match. Uncertainty fails closed.
			return model.Decision{Verdict: model.Deny, Cause: ruleCause(p, r, q.direction)}, true
		}
	}
	return model.Decision{}, false
}

// additive evaluates the NetworkPolicy tier: rules have no order and do not deny, but pods
// that a policy selects for the direction are isolated.
func (e *Evaluator) additive(q question) (model.Decision, bool) {
	var isolating *model.Policy
	for _, p := range e.policies {
		if p.Tier != model.TierNetworkPolicy || !p.Isolates[q.direction] || !e.applies(p, q.pod) {
			continue
		}
		if isolating == nil {
			isolating = p
		}
		for _, r := range p.Rules[q.direction] {
			if e.matches(r, q) == yes {
				return model.Decision{Verdict: model.Allow, Cause: ruleCause(p, r, q.direction)}, true
			}
		}
	}
	if isolating == nil {
		return model.Decision{}, false
	}
	return model.Decision{Verdict: model.Deny, Cause: &model.Cause{Reason: model.ReasonIsolated,
		Origin: isolating.Origin, Tier: model.TierNetworkPolicy, Direction: q.direction}}, true
}

func ruleCause(p *model.Policy, r model.Rule, d model.Direction) *model.Cause {
	return &model.Cause{Reason: model.ReasonRule, Origin: p.Origin, Tier: p.Tier, Direction: d, Rule: r.Index, RuleName: r.Name}
}

func (e *Evaluator) applies(p *model.Policy, pod *model.Pod) bool {
	return e.selected || e.selects(p.Subject, pod)
}

func (e *Evaluator) selects(s model.PodSelector, pod *model.Pod) bool {
	return s.MatchesNamespace(e.snapshot.Namespace(pod.Namespace)) && s.Pods.Matches(pod.Labels)
}

// match is the three-valued result of a rule or of one of its terms.
type match uint8

const (
	no match = iota
	// maybe: the result depends on an unknown, such as the labels of a pod that is not known
	// yet, or a peer of a newer API.
	maybe
	yes
)

// matches combines the peers and the ports: at least one of each must match.
func (e *Evaluator) matches(r model.Rule, q question) match {
	peer, port := e.matchesPeers(&r, q), no
	if r.AnyPort {
		port = yes
	}
	for _, p := range r.Ports {
		port = max(port, e.matchesPort(p, q))
	}
	return min(peer, port)
}

func (e *Evaluator) matchesPeers(r *model.Rule, q question) match {
	m := is(r.AnyPeer)
	for _, p := range r.Peers {
		m = max(m, e.matchesPeer(p, q))
	}
	return m
}

func (e *Evaluator) matchesPeer(p model.Peer, q question) match {
	switch p.Kind {
	case model.PeerPods:
		if q.remote.unknown {
			return maybe
		}
		return is(q.remote.pod != nil && e.selects(p.Pods, q.remote.pod))
	case model.PeerBlock:
		return is(p.Block.Contains(q.remote.addr))
	case model.PeerNodes:
		return is(q.remote.pod == nil && q.remote.node != nil && p.Nodes.Matches(q.remote.node.Labels))
	}
	return maybe
}

func (e *Evaluator) matchesPort(m model.PortMatch, q question) match {
	if m.Name == "" {
		return is(q.protocol == m.Protocol && m.First <= q.port && q.port <= m.Last)
	}
	// The destination pod defines the meaning of a port name.
	destination := q.pod
	if q.direction == model.Egress {
		destination = q.remote.pod
		if q.remote.unknown && (m.Protocol == q.protocol || m.Protocol == model.AnyProtocol && q.protocol.HasPorts()) {
			return maybe
		}
	}
	if destination == nil {
		return no
	}
	for _, port := range destination.Resolve(m.Name, m.Protocol) {
		if port.Protocol == q.protocol && port.Port == q.port {
			return yes
		}
	}
	return no
}

func is(b bool) match {
	if b {
		return yes
	}
	return no
}
