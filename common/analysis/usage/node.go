// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"slices"

	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/model"
)

// Units of the numbers of rules.
const (
	Flows   = "new flows"
	Packets = "packets"
)

// maxUnsupported and maxTexts bound what a Report holds of a node.
const maxUnsupported, maxTexts = 2000, 50

// Report is what a node reports about itself and its policies, for readers of the whole cluster.
type Report struct {
	// About has no settings and no facts.
	About inspect.About
	// Unlisted counts the entries of About.Unsupported that were left out.
	Unlisted int `json:",omitempty"`
	// Endpoints counts the attached pods.
	Endpoints int
	Policies  Policies
}

// NewReport returns the report about a Bundle, which needs no more than Agent.Brief has.
func NewReport(b *inspect.Bundle) *Report {
	r := &Report{About: b.About, Endpoints: len(b.Endpoints), Policies: Of(b)}
	a := &r.About
	a.Settings, a.Facts = nil, nil
	a.Problems, a.Repairs, a.Modes, a.Notes = first(a.Problems), first(a.Repairs), first(a.Modes), first(a.Notes)
	if over := len(a.Unsupported) - maxUnsupported; over > 0 {
		a.Unsupported, r.Unlisted = a.Unsupported[:maxUnsupported], over
	}
	return r
}

func first(all []string) []string { return all[:min(len(all), maxTexts)] }

// Policies are the policies that select pods of a node, in the order of evaluation, with what each of their rules has decided.
type Policies struct {
	Items []Policy `json:"items"`
	// Uncounted is what no listed rule has decided; nil where nothing is counted.
	Uncounted *Rest `json:"uncounted"`
	// Unit is what the numbers count: Flows or Packets.
	Unit string `json:"unit"`
	// Notes say why there are no numbers.
	Notes []string `json:"notes,omitempty"`
}

// Policy is a policy that selects pods of a node.
type Policy struct {
	Policy string `json:"policy"`
	Tier   string `json:"tier"`
	// Pods counts the pods of the node that it selects.
	Pods int `json:"pods"`
	// Inexact says what the node does instead of enforcing it exactly.
	Inexact []string `json:"inexact"`
	// Allowed and Denied are the sums of Rules. They are missing where nothing is counted.
	Allowed *uint64 `json:"allowed,omitempty"`
	Denied  *uint64 `json:"denied,omitempty"`
	// Rules are the causes that the policy can be.
	Rules []Rule `json:"rules,omitempty"`
}

// Rule counts what one rule of a policy has decided, or its isolation of the pods.
type Rule struct {
	Direction string `json:"direction"`
	// Rule is the index in the object; missing for isolation: no rule of any policy has accepted.
	Rule    *int   `json:"rule,omitempty"`
	Name    string `json:"name,omitempty"`
	Allowed uint64 `json:"allowed"`
	Denied  uint64 `json:"denied"`
	// Shared is true if some of its decisions are not counted separately.
	Shared bool `json:"shared,omitempty"`
}

// Rest counts what no rule of a listed policy has decided.
type Rest struct {
	// Default: no policy isolates the pod. Node: the node itself sent it, or a pod to itself. Pending: policy was
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

// Of returns the policies of a node.
func Of(b *inspect.Bundle) Policies {
	all := Policies{Items: []Policy{}, Unit: Flows, Uncounted: rest(b.Counts)}
	if b.About.OS == model.Windows || b.Counts != nil && b.Counts.Packets {
		all.Unit = Packets
	}
	if b.Counts == nil {
		all.Notes = first(b.About.Notes)
	}
	pods := make(map[model.Origin]int)
	for _, p := range b.Endpoints {
		for _, o := range p.Policies {
			pods[o.Key()]++
		}
	}
	inexact := make(map[model.Origin][]string)
	for _, u := range b.About.Unsupported {
		if effect := u.Effect.String(); !slices.Contains(inexact[u.Policy.Key()], effect) {
			inexact[u.Policy.Key()] = append(inexact[u.Policy.Key()], effect)
		}
	}
	policies := slices.Clone(b.Cluster.Policies)
	slices.SortFunc(policies, model.ComparePolicies)
	counted := byRule(b.Counts)
	for _, p := range policies {
		o := p.Origin.Key()
		if pods[o] == 0 {
			continue
		}
		r := Policy{Policy: p.Origin.String(), Tier: p.Tier.String(), Pods: pods[o], Inexact: append([]string{}, inexact[o]...)}
		if b.Counts != nil {
			r.count(p, counted)
		}
		all.Items = append(all.Items, r)
	}
	return all
}

// cause identifies a rule of a policy, or its isolation of pods.
type cause struct {
	policy    model.Origin
	direction model.Direction
	rule      int // -1 for isolation
}

// tally is what a cause has decided, by Verdict.
type tally struct {
	decided [2]uint64
	shared  bool
}

// causeOf returns the rule that a cause is. ok is false for other causes.
func causeOf(c *model.Cause) (_ cause, ok bool) {
	if c == nil {
		return cause{}, false
	}
	switch c.Reason {
	case model.ReasonRule:
		return cause{c.Origin.Key(), c.Direction, c.Rule}, true
	case model.ReasonIsolated:
		return cause{c.Origin.Key(), c.Direction, -1}, true
	case model.ReasonDefault, model.ReasonNode, model.ReasonSelf, model.ReasonPending:
	}
	return cause{}, false
}

// byRule adds up counters by the rule that they are for.
func byRule(counts *inspect.Counts) map[cause]*tally {
	if counts == nil {
		return nil
	}
	all := make(map[cause]*tally)
	of := func(c *model.Cause) *tally {
		key, ok := causeOf(c)
		if !ok {
			return new(tally)
		}
		if all[key] == nil {
			all[key] = new(tally)
		}
		return all[key]
	}
	for _, c := range counts.Causes {
		of(c.Cause).decided[c.Verdict&1] += c.Flows
	}
	for _, d := range counts.Shared {
		of(d.Cause).shared = true
	}
	return all
}

// count fills in what the rules of a policy have decided.
func (r *Policy) count(p *model.Policy, counted map[cause]*tally) {
	r.Allowed, r.Denied = new(uint64), new(uint64)
	add := func(rule Rule, key cause) {
		if t := counted[key]; t != nil {
			rule.Allowed, rule.Denied, rule.Shared = t.decided[model.Allow], t.decided[model.Deny], t.shared
		}
		*r.Allowed += rule.Allowed
		*r.Denied += rule.Denied
		r.Rules = append(r.Rules, rule)
	}
	for _, d := range model.Directions {
		for i := range p.Rules[d] {
			rule := &p.Rules[d][i]
			add(Rule{Direction: d.String(), Rule: &rule.Index, Name: rule.Name}, cause{p.Origin.Key(), d, rule.Index})
		}
		if p.Isolates[d] {
			add(Rule{Direction: d.String()}, cause{p.Origin.Key(), d, -1})
		}
	}
}

// rest returns what no rule has decided; nil without numbers.
func rest(counts *inspect.Counts) *Rest {
	if counts == nil {
		return nil
	}
	r := &Rest{Rules: len(counts.Shared)}
	for _, past := range counts.Past {
		r.Past += past[model.Deny] + past[model.Allow]
	}
	for _, others := range counts.Others {
		r.Allowed += others[model.Allow]
		r.Denied += others[model.Deny]
	}
	for _, c := range counts.Causes {
		if c.Cause == nil {
			continue
		}
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
