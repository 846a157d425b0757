// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// Role is the effect of a rule on one flow.
type Role uint8

// The roles.
const (
	// NoMatch: the rule does not match the flow.
	NoMatch Role = iota
	// Decides: the rule gives the verdict.
	Decides
	// Passes: a Pass rule that matches, or an Accept rule after MayPass. The rest of its
	// tier is not evaluated.
	Passes
	// NotEvaluated: an earlier rule gave the verdict or ended the tier.
	NotEvaluated
	// MayPass: a Pass rule that matches, of a policy that may or may not select the pod. Its
	// tier cannot accept the flow any more.
	MayPass
)

// String returns a short description.
func (r Role) String() string {
	return [...]string{"does not match", "decides", "passes to the next tier", "is not evaluated", "keeps its tier from accepting"}[r]
}

// RuleTrace is one rule of a policy that selects the pod.
type RuleTrace struct {
	Policy *model.Policy
	Rule   *model.Rule
	Role   Role
	// PeerMisses and PortMisses give the reasons why the rule's peers, or its ports, do not
	// match the flow, one line for each alternative. They are empty if the rule matches.
	PeerMisses, PortMisses []string
}

// Change is an edit that would reverse the verdict.
type Change struct {
	Policy model.Origin
	// Rule is the index in the API object; -1 for the whole policy.
	Rule int
	// What describes the change in one line, with the first few of Misses.
	What string
	// Misses are the conditions that the change would make true.
	Misses []string
	// Then is the decision after the change.
	Then model.Decision
}

// Explanation describes how one end of a flow is decided.
type Explanation struct {
	Pod       *model.Pod
	Direction model.Direction
	Remote    netip.Addr
	Decision  model.Decision
	// Isolating are the NetworkPolicies that isolate the pod in this direction.
	Isolating []model.Origin
	// Rules are those of all policies that select the pod and have rules for this direction,
	// in the order of evaluation.
	Rules []RuleTrace
	// Changes are single edits of one policy that reverse the verdict, at most maxChanges of
	// them.
	Changes []Change
	// Next is what denies the flow if the rule that denies it is removed; nil if nothing does.
	Next *model.Decision
}

// maxChanges bounds the changes that an Explanation lists.
const maxChanges = 10

// Explain decides as Endpoint does, and reports how.
func (e *Evaluator) Explain(pod *model.Pod, d model.Direction, remote netip.Addr, p model.Protocol, port uint16) Explanation {
	x := Explanation{Pod: pod, Direction: d, Remote: remote}
	q := question{pod: pod, direction: d, remote: e.remote(remote), protocol: p, port: port}
	switch {
	case slices.Contains(pod.IPs, remote):
		x.Decision = model.Decision{Verdict: model.Allow, Cause: &model.Cause{Reason: model.ReasonSelf, Direction: d}}
		return x
	case d == model.Ingress && q.remote.pod == nil && q.remote.node != nil && q.remote.node.Name == pod.Node:
		x.Decision = model.Decision{Verdict: model.Allow, Cause: &model.Cause{Reason: model.ReasonNode, Direction: d}}
		return x
	case !pod.Policed():
		x.Decision = model.Decision{Verdict: model.Allow, Cause: &model.Cause{Direction: d}}
		return x
	}
	e.trace(&x, q)
	x.Changes = e.changes(&x, q)
	return x
}

// trace evaluates the rules in order.
func (e *Evaluator) trace(x *Explanation, q question) {
	passed, mayHavePassed := make(map[model.Tier]bool), make(map[model.Tier]bool)
	var isolating *model.Policy
	for _, p := range e.policies {
		if !e.selects(p.Subject, q.pod) {
			continue
		}
		if p.Tier == model.TierNetworkPolicy {
			if !p.Isolates[q.direction] {
				continue
			}
			x.Isolating = append(x.Isolating, p.Origin)
			if isolating == nil {
				isolating = p
			}
		}
		for i := range p.Rules[q.direction] {
			r := &p.Rules[q.direction][i]
			t := RuleTrace{Policy: p, Rule: r, PeerMisses: e.peerMisses(r, q), PortMisses: e.portMisses(r, q)}
			m := e.matches(*r, q)
			switch {
			case x.Decision.Cause != nil || passed[p.Tier] || p.Tier == model.TierBaseline && isolating != nil:
				t.Role = NotEvaluated
			case m == no || m == maybe && r.Action == model.ActionAccept:
				t.Role = NoMatch
			case r.Action == model.ActionMayPass:
				t.Role = MayPass
				mayHavePassed[p.Tier] = true
			case m == yes && (r.Action == model.ActionPass || r.Action == model.ActionAccept && mayHavePassed[p.Tier]):
				t.Role = Passes
				passed[p.Tier] = true
			default:
				t.Role = Decides
				x.Decision.Cause = ruleCause(p, *r, q.direction)
				if m == yes && r.Action == model.ActionAccept {
					x.Decision.Verdict = model.Allow
				}
			}
			x.Rules = append(x.Rules, t)
		}
	}
	switch {
	case x.Decision.Cause != nil:
	case isolating != nil:
		x.Decision.Cause = &model.Cause{Reason: model.ReasonIsolated, Origin: isolating.Origin, Tier: model.TierNetworkPolicy, Direction: q.direction}
	default:
		x.Decision = model.Decision{Verdict: model.Allow, Cause: &model.Cause{Reason: model.ReasonDefault, Direction: q.direction}}
	}
}

// changes tries edits of one policy each and keeps those that reverse the verdict.
func (e *Evaluator) changes(x *Explanation, q question) []Change {
	var found []Change
	try := func(policy *model.Policy, rule int, what string, misses []string, edit *model.Policy) {
		if len(found) == maxChanges {
			return
		}
		if then := e.edited(policy, edit).decide(q); then.Verdict != x.Decision.Verdict {
			found = append(found, Change{Policy: policy.Origin, Rule: rule, What: what + join(misses), Misses: misses, Then: then})
		}
	}
	for _, t := range x.Rules {
		if t.Role == Decides && x.Decision.Verdict == model.Deny {
			if then := e.edited(t.Policy, withRule(t, q.direction, nil)).decide(q); then.Verdict == model.Deny {
				x.Next = &then
			}
		}
		switch {
		case t.Role == Decides || t.Role == Passes || t.Role == MayPass:
			try(t.Policy, t.Rule.Index, "without this rule", nil, withRule(t, q.direction, nil))
		case len(t.PeerMisses) > 0 && len(t.PortMisses) == 0:
			r := *t.Rule
			r.AnyPeer, r.Peers = true, nil
			try(t.Policy, t.Rule.Index, "if its peers matched: ", t.PeerMisses, withRule(t, q.direction, &r))
		case len(t.PortMisses) > 0 && len(t.PeerMisses) == 0:
			r := *t.Rule
			r.AnyPort, r.Ports = true, nil
			try(t.Policy, t.Rule.Index, "if its ports matched: ", t.PortMisses, withRule(t, q.direction, &r))
		}
	}
	for _, p := range e.policies {
		switch {
		case p.Tier == model.TierNetworkPolicy && !p.Isolates[q.direction], p.Tier != model.TierNetworkPolicy && len(p.Rules[q.direction]) == 0:
		case e.selects(p.Subject, q.pod):
			if slices.ContainsFunc(x.Isolating, func(o model.Origin) bool { return o == p.Origin }) {
				try(p, -1, "without this policy, which isolates the pod", nil, nil)
			}
		case p.Subject.Namespace != "" && p.Subject.Namespace != q.pod.Namespace: // no edit can make the policy select the pod
		default:
			if misses := e.selectorMisses(p.Subject, q.pod); len(misses) == 1 {
				all := *p
				all.Subject = model.PodSelector{}
				try(p, -1, "if it selected the pod: ", misses, &all)
			}
		}
	}
	return found
}

// decide is Endpoint for a flow whose remote end is neither the pod itself nor its node.
func (e *Evaluator) decide(q question) model.Decision {
	return e.Endpoint(q.pod, q.direction, q.remote.addr, q.protocol, q.port)
}

// edited returns an evaluator in which with replaces policy; a nil with removes it.
func (e *Evaluator) edited(policy, with *model.Policy) *Evaluator {
	c := *e
	c.policies = nil
	for _, p := range e.policies {
		switch {
		case p != policy:
			c.policies = append(c.policies, p)
		case with != nil:
			c.policies = append(c.policies, with)
		}
	}
	return &c
}

// withRule returns the policy of t with its rule replaced by with; a nil with removes the
// rule.
func withRule(t RuleTrace, d model.Direction, with *model.Rule) *model.Policy {
	p := *t.Policy
	p.Rules[d] = nil
	for i := range t.Policy.Rules[d] {
		switch r := &t.Policy.Rules[d][i]; {
		case r != t.Rule:
			p.Rules[d] = append(p.Rules[d], *r)
		case with != nil:
			p.Rules[d] = append(p.Rules[d], *with)
		}
	}
	return &p
}
