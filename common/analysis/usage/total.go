// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"cmp"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// maxRules bounds the rules of a Total. A node whose rules would exceed it is missing.
const maxRules = 200_000

// Unknown is the operating system of a node that does not answer and has no Node object.
const Unknown model.OS = "unknown"

// Answer is what the agent of a node answers.
type Answer struct {
	Node string
	// OS is empty if it is not known.
	OS model.OS
	// Policies are nil if there is no answer. Why then says why.
	Policies    *Policies
	Unsupported []model.Unsupported
	// Unlisted counts further entries of Unsupported.
	Unlisted int
	Why      string
}

// Total adds up the answers of nodes.
type Total struct {
	// Systems are the nodes by operating system.
	Systems []System
	// Policies are by "Kind namespace/name".
	Policies map[string]*PolicyTotal
	// Inexact is what nodes do not enforce exactly, by policy and rule.
	Inexact []Construct
	// Unlisted counts entries that are not in Inexact, because there are too many.
	Unlisted int
	size     int // number of rules
}

// System is the nodes of one operating system.
type System struct {
	OS   model.OS
	Unit string
	// Nodes counts all of them, Answered those whose agents answer, and Counted those with numbers.
	Nodes, Answered, Counted int
	// Missing are the nodes without numbers.
	Missing []Missing
	// Allowed and Denied were not counted separately: an upper bound of what the numbers of policies lack.
	Allowed, Denied uint64
	// Rest adds up what no rule of a policy has decided. It is nil if the reader may not see it.
	Rest *Rest
}

// Missing is a node without numbers. Answered is true if its agent answers.
type Missing struct {
	Node, Why string
	Answered  bool
}

// PolicyTotal is what a policy has decided on all nodes with numbers.
type PolicyTotal struct {
	// Pods counts the pods that it selects there.
	Pods           int
	Flows, Packets Number
	Rules          []RuleTotal
	known          map[ruleKey]int // places in Rules
}

// RuleTotal is what a rule has decided, or with rule -1 the isolation of pods.
type RuleTotal struct {
	Direction      string
	Rule           int
	Name           string
	Flows, Packets Number
}

// Number is a sum over the nodes that have pods of a policy, and numbers.
type Number struct {
	Nodes           int
	Allowed, Denied uint64
	// Shared is true if some of it is not counted separately.
	Shared bool
}

func (n *Number) add(allowed, denied uint64, shared bool) {
	n.Nodes++
	n.Allowed += allowed
	n.Denied += denied
	n.Shared = n.Shared || shared
}

// Adder adds up answers. Its zero value has none.
type Adder struct {
	total   Total
	systems map[model.OS]*System
	found   constructs
}

// Sum adds up answers.
func Sum(answers []Answer) *Total {
	var x Adder
	for i := range answers {
		x.Add(&answers[i])
	}
	return x.Total()
}

// Add adds an answer. It keeps none of its lists.
func (x *Adder) Add(a *Answer) {
	if x.systems == nil {
		x.systems, x.found, x.total.Policies = make(map[model.OS]*System), make(constructs), make(map[string]*PolicyTotal)
	}
	os := cmp.Or(a.OS, Unknown)
	s := x.systems[os]
	if s == nil {
		s = &System{OS: os, Unit: UnitOf(os), Rest: new(Rest)}
		x.systems[os] = s
	}
	s.Nodes++
	if why, ok := x.total.add(s, a); !ok {
		s.Missing = append(s.Missing, Missing{a.Node, why, a.Policies != nil})
	}
	if a.Policies != nil {
		s.Answered++
		x.total.Unlisted += a.Unlisted + x.found.add(a)
	}
}

// Total returns the sum. Call it once, after the last Add.
func (x *Adder) Total() *Total {
	for _, s := range x.systems {
		slices.SortFunc(s.Missing, func(a, b Missing) int { return strings.Compare(a.Node, b.Node) })
		x.total.Systems = append(x.total.Systems, *s)
	}
	slices.SortFunc(x.total.Systems, func(a, b System) int { return cmp.Compare(a.OS, b.OS) })
	x.total.Inexact = x.found.list()
	return &x.total
}

// UnitOf returns what nodes of an operating system count.
func UnitOf(os model.OS) string {
	if os == model.Windows {
		return Packets
	}
	return Flows
}

// add adds the numbers of a node. Otherwise it says why there are none.
func (t *Total) add(s *System, a *Answer) (why string, ok bool) {
	p := a.Policies
	switch {
	case p == nil:
		return cmp.Or(a.Why, "no answer"), false
	case p.Uncounted == nil:
		return cmp.Or(strings.Join(p.Notes, "; "), "its data path does not count by rule"), false
	case p.Unit != s.Unit:
		return "it counts " + p.Unit + ", unlike the other nodes with its operating system", false
	case t.size > maxRules:
		return "the policies of the other nodes have too many rules to add more", false
	}
	s.Counted++
	s.Rest.add(p.Uncounted)
	s.Allowed, s.Denied = s.Rest.Allowed, s.Rest.Denied
	for i := range p.Items {
		item := &p.Items[i]
		if item.Allowed == nil || item.Denied == nil {
			continue
		}
		of := t.Policies[item.Policy]
		if of == nil {
			of = &PolicyTotal{known: make(map[ruleKey]int)}
			t.Policies[item.Policy] = of
			t.size++
		}
		of.Pods += item.Pods
		t.size += of.add(p.Unit, item)
	}
	return "", true
}

// add adds the numbers of a policy on one node. It returns the number of rules that no other node had.
func (p *PolicyTotal) add(unit string, item *Policy) (fresh int) {
	shared := false
	for _, r := range item.Rules {
		key := ruleKey{r.Direction, -1}
		if r.Rule != nil {
			key.rule = *r.Rule
		}
		i, ok := p.known[key]
		if !ok {
			i = len(p.Rules)
			p.known[key] = i
			p.Rules = append(p.Rules, RuleTotal{Direction: r.Direction, Rule: key.rule, Name: r.Name})
			fresh++
		}
		p.Rules[i].number(unit).add(r.Allowed, r.Denied, r.Shared)
		shared = shared || r.Shared
	}
	total := &p.Flows
	if unit == Packets {
		total = &p.Packets
	}
	total.add(*item.Allowed, *item.Denied, shared)
	return fresh
}

type ruleKey struct {
	direction string
	rule      int
}

func (r *RuleTotal) number(unit string) *Number {
	if unit == Packets {
		return &r.Packets
	}
	return &r.Flows
}

func (r *Rest) add(o *Rest) {
	r.Default += o.Default
	r.Node += o.Node
	r.Pending += o.Pending
	r.Allowed += o.Allowed
	r.Denied += o.Denied
	r.Past += o.Past
	r.Rules += o.Rules
}

// NamespaceOf returns the namespace in the name of a policy, "Kind namespace/name"; empty for one of the cluster.
func NamespaceOf(policy string) string {
	_, name, _ := strings.Cut(policy, " ")
	namespace, _, ok := strings.Cut(name, "/")
	if !ok {
		return ""
	}
	return namespace
}
