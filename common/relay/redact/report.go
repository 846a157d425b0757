// SPDX-License-Identifier: Apache-2.0

package redact

import (
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/access"
	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/analysis/usage"
)

// IsNamespace reports whether a text can be the name of a namespace.
func IsNamespace(text string) bool {
	return text != "" && len(text) <= 63 && strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// hiddenName stands for what a client may not see in a report.
const hiddenName = "hidden"

// Report returns what a client may see of an explanation whose pods are in namespaces of the scope. It copies what is known to be
// harmless. A client without the right for all namespaces sees the policies of its namespaces, and the rule that decides, as
// with flows: other rules of a policy of the cluster may name other teams. A client without the right to data of nodes does not
// see on which nodes the pods are, nor what is wrong there.
func Report(scope access.Scope, x *explain.Report) *explain.Report {
	if scope.All && scope.Nodes {
		return x
	}
	end := func(e explain.End) explain.End {
		e = explain.End{Address: e.Address, Pod: e.Pod, Node: e.Node, Unknown: e.Unknown}
		if !scope.Nodes {
			e.Node = ""
		}
		return e
	}
	out := &explain.Report{From: end(x.From), To: end(x.To), Protocol: x.Protocol, Port: x.Port, Verdict: x.Verdict, Notes: x.Notes}
	if out.DenyLists = x.DenyLists; len(x.DenyLists) > 0 && !scope.All {
		out.DenyLists = []string{hiddenName}
	}
	for i := range x.Sides {
		out.Sides = append(out.Sides, side(scope, &x.Sides[i]))
	}
	return out
}

// side returns what a client sees of one end.
func side(scope access.Scope, s *explain.Side) explain.Side {
	out := explain.Side{Direction: s.Direction, Pod: s.Pod, Node: hiddenName, OS: s.OS, Decision: s.Decision, Notes: slices.Clone(s.Notes)}
	if scope.Nodes {
		out.Node, out.Enforced = s.Node, s.Enforced
	} else {
		for _, e := range s.Enforced {
			shown := explain.Enforcement{Platform: "its node", Verdict: e.Verdict, Exact: e.Exact}
			if len(e.Reasons) > 0 {
				shown.Reasons = []string{"the node reports why to its administrators"}
			}
			out.Enforced = append(out.Enforced, shown)
		}
	}
	if scope.All {
		out.Isolating, out.Rules, out.Changes, out.Suggestion = s.Isolating, s.Rules, s.Changes, s.Suggestion
		return out
	}
	if copyPolicies(scope, &out, s) {
		out.Notes = append(out.Notes, "entries of policies of the cluster are hidden, because you may not read all namespaces")
	}
	return out
}

// copyPolicies copies what a side says about policies that a client sees. It reports whether something is hidden.
func copyPolicies(scope access.Scope, out, s *explain.Side) (hidden bool) {
	own := func(policy string) bool { return scope.Sees(usage.NamespaceOf(policy)) }
	// sees reports whether the client sees a rule, or with nil what concerns the whole policy.
	sees := func(policy string, rule *int) bool {
		d := s.Decision
		visible := own(policy) || policy == d.Policy && (rule == nil || d.Rule != nil && *rule == *d.Rule)
		hidden = hidden || !visible
		return visible
	}
	for _, policy := range s.Isolating {
		if sees(policy, nil) {
			out.Isolating = append(out.Isolating, policy)
		}
	}
	for _, r := range s.Rules {
		if sees(r.Policy, &r.Rule) {
			out.Rules = append(out.Rules, r)
		}
	}
	for _, c := range s.Changes {
		if !sees(c.Policy, c.Rule) {
			continue
		}
		if c.Then.Policy != "" && !sees(c.Then.Policy, c.Then.Rule) {
			c.Then = explain.Decision{Verdict: c.Then.Verdict, Text: "a policy of the cluster decides"}
		}
		out.Changes = append(out.Changes, c)
	}
	if s.Suggestion != nil && own(s.Suggestion.Policy) {
		suggestion := *s.Suggestion
		if suggestion.Note != "" {
			suggestion.Note = "the rule allows other pods, too: ask who may read all namespaces which"
		}
		out.Suggestion = &suggestion
	}
	return hidden
}
