// SPDX-License-Identifier: Apache-2.0

package redact

import (
	"fmt"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/access"
	"github.com/isthmus-net/isthmus/common/analysis/explain"
)

// IsNamespace reports whether a text can be the name of a namespace.
func IsNamespace(text string) bool {
	return text != "" && len(text) <= 63 && strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// hiddenName stands for what a client may not see in a report.
const hiddenName = "hidden"

// Report returns what a client may see of an explanation whose pods are in namespaces of the scope. It copies what is known to be
// harmless. A client without the right for all namespaces sees the policies of its namespaces, and the one that decides, as
// with flows. A client without the right to data of nodes does not see on which nodes the pods are, nor what is wrong there.
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
	if hidden := copyPolicies(scope, &out, s); hidden > 0 {
		out.Notes = append(out.Notes, fmt.Sprintf("%d entries of policies of the cluster are hidden, because you may not read all namespaces", hidden))
	}
	return out
}

// copyPolicies copies what a side says about policies that a client sees. It returns the number of hidden entries.
func copyPolicies(scope access.Scope, out, s *explain.Side) (hidden int) {
	sees := func(policy string) bool {
		_, name, _ := strings.Cut(policy, " ")
		namespace, _, ok := strings.Cut(name, "/")
		return ok && scope.Sees(namespace) || policy == s.Decision.Policy
	}
	for _, policy := range s.Isolating {
		if sees(policy) {
			out.Isolating = append(out.Isolating, policy)
		}
	}
	for _, r := range s.Rules {
		if sees(r.Policy) {
			out.Rules = append(out.Rules, r)
		}
	}
	for _, c := range s.Changes {
		if !sees(c.Policy) {
			continue
		}
		if c.Then.Policy != "" && !sees(c.Then.Policy) {
			c.Then = explain.Decision{Verdict: c.Then.Verdict, Text: "a policy of the cluster decides"}
			hidden++
		}
		out.Changes = append(out.Changes, c)
	}
	if s.Suggestion != nil && sees(s.Suggestion.Policy) {
		suggestion := *s.Suggestion
		if suggestion.Note != "" {
			suggestion.Note = "the rule allows other pods, too: ask who may read all namespaces which"
		}
		out.Suggestion = &suggestion
	}
	return hidden + len(s.Isolating) - len(out.Isolating) + len(s.Rules) - len(out.Rules) + len(s.Changes) - len(out.Changes)
}
