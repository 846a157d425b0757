// SPDX-License-Identifier: Apache-2.0

package redact

import (
	"cmp"
	"maps"
	"slices"

	"github.com/isthmus-net/isthmus/common/access"
	"github.com/isthmus-net/isthmus/common/analysis/usage"
	"github.com/isthmus-net/isthmus/common/model"
)

// hiddenReason replaces why a node does not enforce something exactly.
const hiddenReason = "the nodes report why to their administrators"

// Usage returns what a client may see of the reports of nodes: the policies of its namespaces. It copies what is known to be
// harmless. How many nodes are counted and missing, and how much was not counted separately, stays: a reader must know what
// the numbers lack. A client without the right to data of nodes does not see which nodes these are, nor what is wrong there.
func Usage(scope access.Scope, t *usage.Total) *usage.Total {
	if scope.All && scope.Nodes {
		return t
	}
	out := &usage.Total{Policies: make(map[string]*usage.PolicyTotal), Unlisted: t.Unlisted}
	for i := range t.Systems {
		out.Systems = append(out.Systems, system(scope, &t.Systems[i]))
	}
	for name, p := range t.Policies {
		if scope.Sees(usage.NamespaceOf(name)) {
			out.Policies[name] = &usage.PolicyTotal{Pods: p.Pods, Flows: p.Flows, Packets: p.Packets, Rules: p.Rules}
		}
	}
	for i := range t.Inexact {
		if c := &t.Inexact[i]; scope.Sees(usage.NamespaceOf(c.Policy)) {
			out.Inexact = append(out.Inexact, usage.Construct{Policy: c.Policy, Direction: c.Direction, Rule: c.Rule, Construct: c.Construct, On: where(scope, c.On)})
		}
	}
	return out
}

// system returns what a client sees of the nodes of an operating system.
func system(scope access.Scope, s *usage.System) usage.System {
	out := usage.System{OS: s.OS, Unit: s.Unit, Nodes: s.Nodes, Answered: s.Answered, Counted: s.Counted, Allowed: s.Allowed, Denied: s.Denied}
	if scope.All {
		out.Rest = s.Rest
	}
	for _, m := range s.Missing {
		if scope.Nodes {
			out.Missing = append(out.Missing, usage.Missing{Node: m.Node, Why: m.Why, Answered: m.Answered})
		} else {
			out.Missing = append(out.Missing, usage.Missing{Answered: m.Answered})
		}
	}
	if !scope.Nodes { // their order is that of the names
		slices.SortFunc(out.Missing, func(a, b usage.Missing) int { return cmp.Compare(number(a.Answered), number(b.Answered)) })
	}
	return out
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// where returns what a client sees of the nodes that do not enforce a construct. Without the right to data of nodes these are
// their operating systems and their number.
func where(scope access.Scope, all []usage.Where) (out []usage.Where) {
	if scope.Nodes {
		for _, w := range all {
			out = append(out, usage.Where{OS: w.OS, Platform: w.Platform, Effect: w.Effect, Reason: w.Reason, Nodes: w.Nodes, Count: w.Count})
		}
		return out
	}
	type key struct {
		os     model.OS
		effect string
	}
	nodes := make(map[key]map[string]bool)
	for _, w := range all {
		k := key{w.OS, w.Effect}
		if nodes[k] == nil {
			nodes[k] = make(map[string]bool)
		}
		for _, n := range w.Nodes {
			nodes[k][n] = true
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(nodes), func(a, b key) int { return cmp.Or(cmp.Compare(a.os, b.os), cmp.Compare(a.effect, b.effect)) }) {
		out = append(out, usage.Where{OS: k.os, Effect: k.effect, Reason: hiddenReason, Count: len(nodes[k])})
	}
	return out
}
