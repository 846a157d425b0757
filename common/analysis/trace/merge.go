// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

const stepPath = "path"

// Merge combines the traces of one flow from the nodes of both ends: the steps at the source from one node, those at the
// destination from the other, and the path as each sees it.
func Merge(from, to *Report) *Report {
	out := *from
	out.Node = from.Node + ", " + to.Node
	out.Steps = slices.Concat(from.Steps[:pathOf(from)], to.Steps[min(max(0, pathOf(to)-1), len(to.Steps)):])
	out.Installed, out.Drift = model.Allow.String(), false
	for i := range out.Steps {
		s := &out.Steps[i]
		out.Drift = out.Drift || s.Drift
		if s.Installed == unknown {
			out.Installed = unknown
		}
	}
	if from.Installed == model.Deny.String() || to.Installed == model.Deny.String() {
		out.Installed = model.Deny.String()
	}
	if from.Intended != to.Intended {
		out.Intended = model.Deny.String()
		out.Steps = append(out.Steps, Step{What: "policy", Where: out.Node, Wrong: []string{
			"the nodes intend different verdicts, " + from.Intended + " and " + to.Intended + ": a change of policy is not in force on one of them yet: repeat the trace"}})
	}
	return &out
}

// Forward combines the traces of a connection that a node forwards: from follows what the source calls, to the connection to the
// backend. What to says about the source is about another destination, and left out.
func Forward(from, to *Report) *Report {
	out := *from
	if from.Node != to.Node {
		out.Node = from.Node + ", " + to.Node
	}
	out.To, out.Port = to.To, to.Port
	behind := slices.Clone(to.Steps[min(max(0, pathOf(to)-1), len(to.Steps)):])
	out.Steps, out.Drift = slices.Concat(from.Steps, behind), from.Drift
	ended := false // the policy of the destination follows, unless its node does not have the pod
	for _, s := range behind {
		out.Drift = out.Drift || s.Drift
		if s.Intended == model.Deny.String() {
			out.Intended = s.Intended
		}
		out.Installed = weakest(out.Installed, s.Installed)
		ended = ended || s.Installed != ""
	}
	if !ended {
		out.Installed = model.Deny.String()
	}
	return &out
}

// weakest returns the verdict of two steps; the second may have none.
func weakest(a, b string) string {
	switch {
	case a == model.Deny.String() || b == model.Deny.String():
		return model.Deny.String()
	case a == unknown || b == unknown:
		return unknown
	}
	return a
}

// pathOf returns the number of steps up to the path, which is included.
func pathOf(r *Report) int {
	i := slices.IndexFunc(r.Steps, func(s Step) bool { return s.What == stepPath })
	if i < 0 {
		return len(r.Steps)
	}
	return i + 1
}

// Prepend adds a step before the others.
func (r *Report) Prepend(s Step) { r.Steps = append([]Step{s}, r.Steps...) }

// Positive reports whether a flow is allowed, and installed as intended as far as that is known.
func (r *Report) Positive() bool {
	return !r.Drift && r.Intended == model.Allow.String() && r.Installed != model.Deny.String()
}
