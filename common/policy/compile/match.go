// SPDX-License-Identifier: Apache-2.0

package compile

import "github.com/isthmus-net/isthmus/common/model"

// match is the three-valued answer of a rule, or of one of its terms, for a class. The order
// matters: min is "and", max is "or".
type match uint8

const (
	no match = iota
	// maybe: the answer depends on an unknown, such as a pod whose labels have not arrived
	// or a peer of a newer API.
	maybe
	yes
)

// is returns yes or no.
func is(b bool) match {
	if b {
		return yes
	}
	return no
}

// ruleCause names a rule as the cause of a decision.
func ruleCause(p *model.Policy, r *model.Rule, d model.Direction, meaning uint64) *model.Cause {
	return &model.Cause{Reason: model.ReasonRule, Origin: p.Origin, Tier: p.Tier, Direction: d, Rule: r.Index, RuleName: r.Name, Meaning: meaning}
}
