// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"

	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/model"
)

// ruleReport counts the new flows that one rule of a policy has decided, or its isolation of the pods.
type ruleReport struct {
	Direction string `json:"direction"`
	// Rule is the index in the object; missing for isolation: no rule of any policy has accepted the flow.
	Rule    *int   `json:"rule,omitempty"`
	Name    string `json:"name,omitempty"`
	Allowed uint64 `json:"allowed"`
	Denied  uint64 `json:"denied"`
	// Shared is true if some of its flows are not counted separately.
	Shared bool `json:"shared,omitempty"`
}

func (r *ruleReport) text() string {
	text := "isolation, " + r.Direction
	if r.Rule != nil {
		text = fmt.Sprintf("%s rule %d", r.Direction, *r.Rule)
		if r.Name != "" {
			text += " (" + r.Name + ")"
		}
	}
	if r.Shared {
		text += ", not all counted"
	}
	return text
}

// count fills in the new flows that a policy has decided.
func (r *policyReport) count(p *model.Policy, counts *inspect.Counts) {
	r.Allowed, r.Denied = new(uint64), new(uint64)
	for _, d := range model.Directions {
		for i := range p.Rules[d] {
			rule := &p.Rules[d][i]
			r.add(counts, ruleReport{Direction: d.String(), Rule: &rule.Index, Name: rule.Name}, func(c *model.Cause) bool {
				return c.Reason == model.ReasonRule && c.Direction == d && c.Rule == rule.Index && c.Origin.Key() == p.Origin.Key()
			})
		}
		if p.Isolates[d] {
			r.add(counts, ruleReport{Direction: d.String()}, func(c *model.Cause) bool {
				return c.Reason == model.ReasonIsolated && c.Direction == d && c.Origin.Key() == p.Origin.Key()
			})
		}
	}
}

// add appends a rule with the flows of the causes that are this rule.
func (r *policyReport) add(counts *inspect.Counts, rule ruleReport, is func(*model.Cause) bool) {
	for _, c := range counts.Causes {
		if !is(c.Cause) {
			continue
		}
		if c.Verdict == model.Allow {
			rule.Allowed += c.Flows
		} else {
			rule.Denied += c.Flows
		}
	}
	for _, d := range counts.Shared {
		rule.Shared = rule.Shared || d.Cause != nil && is(d.Cause)
	}
	*r.Allowed += rule.Allowed
	*r.Denied += rule.Denied
	r.Rules = append(r.Rules, rule)
}

// restReport counts the new flows that no rule of a listed policy has decided.
type restReport struct {
	// Default: no policy isolates the pod. Node: the node itself sent them, or a pod to itself. Pending: policy was
	// not known yet.
	Default uint64 `json:"default"`
	Node    uint64 `json:"node"`
	Pending uint64 `json:"pending"`
	// Allowed and Denied were not counted separately, because there was no room for their rules.
	Allowed uint64 `json:"not_separately_allowed"`
	Denied  uint64 `json:"not_separately_denied"`
	// Past are those of rules that are gone or say something else now.
	Past uint64 `json:"past"`
	// Rules is the number of rules without room.
	Rules int `json:"not_separately_rules"`
}

// unitOf returns what the numbers of rules count.
func unitOf(b *inspect.Bundle) string {
	if b.Counts != nil && b.Counts.Packets {
		return "packets"
	}
	return "new flows"
}

// uncountedOf returns the flows that no policy of the list has decided; nil if they are not counted.
func uncountedOf(b *inspect.Bundle) *restReport {
	if b.Counts == nil {
		return nil
	}
	r := &restReport{Rules: len(b.Counts.Shared)}
	for _, past := range b.Counts.Past {
		r.Past += past[model.Deny] + past[model.Allow]
	}
	for _, others := range b.Counts.Others {
		r.Allowed += others[model.Allow]
		r.Denied += others[model.Deny]
	}
	for _, c := range b.Counts.Causes {
		switch c.Cause.Reason {
		case model.ReasonDefault:
			r.Default += c.Flows
		case model.ReasonNode, model.ReasonSelf:
			r.Node += c.Flows
		case model.ReasonPending:
			r.Pending += c.Flows
		case model.ReasonRule, model.ReasonIsolated:
		}
	}
	return r
}

func (r *restReport) text(unit string) string {
	return fmt.Sprintf("Other %s: %d where no policy isolates the pod, %d of the node itself or of a pod to itself, %d before policy was known, %d of rules that are gone.\n"+
		"Not counted separately: %d allowed, %d denied; rules without a counter of their own: %d.\n",
		unit, r.Default, r.Node, r.Pending, r.Past, r.Allowed, r.Denied, r.Rules)
}
