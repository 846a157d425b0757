// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// Facts is what a node's agent knows.
type Facts struct {
	Node     string
	Platform model.Features
	Snapshot *model.Snapshot
	// Unsupported lists what the node does not enforce exactly.
	Unsupported []model.Unsupported
	// Problems are the problems of the node itself, one line each.
	Problems []string
	// Unenforced are the pods of the node whose packets may pass without a decision, or cannot pass.
	Unenforced []Unenforced
	// Ready is true if a State is in force.
	Ready bool
}

// Unenforced is a pod whose packets may pass without a decision, or cannot pass at all.
type Unenforced struct {
	Pod model.PodID
	// Detail names the missing parts.
	Detail string
}

// Remarks are the findings about one object from reading it.
type Remarks struct {
	Notes []string
	// Bad is true if the object is invalid and not all of it is used.
	Bad bool
}

// Condition is a condition of a cluster-wide policy. Its status is always False: without a finding no
// condition exists.
type Condition struct {
	// Reason is OverBlocks or Refused.
	Reason  string
	Message string
}

// Event is an event about an object.
type Event struct {
	Object model.Origin
	// Reason and Action are for programs, Note is for people.
	Reason, Action, Note string
	// Name is a function of the object and the finding, so that several nodes and repetitions produce one
	// event.
	Name string
	// OfNode is true if no other node reports the finding.
	OfNode bool
}

// NodeCondition is the condition of the node.
type NodeCondition struct {
	Enforced        bool
	Reason, Message string
}

// Report is the full report of a node.
type Report struct {
	// Type is the type of the conditions, which depends on the platform.
	Type string
	// Conditions are keyed by Origin.Key.
	Conditions map[model.Origin]Condition
	Events     []Event
	Node       NodeCondition
}

// Make computes the report. remarks are keyed by Origin.Key.
func Make(f Facts, remarks map[model.Origin]Remarks) Report {
	r := Report{Type: ConditionType(f.Platform), Conditions: make(map[model.Origin]Condition), Node: nodeCondition(f)}
	if f.Snapshot == nil {
		return r
	}
	for origin, s := range statements(f, remarks) {
		reason, message := s.text()
		if origin.Kind != kindPod && origin.Kind != kindNetworkPolicy {
			r.Conditions[origin.Key()] = Condition{reason, message}
		}
		r.Events = append(r.Events, newEvent(origin, f.Platform, reason, message))
	}
	for _, u := range f.Unenforced {
		if pod, ok := f.Snapshot.Pods.Get(u.Pod); ok {
			r.Events = append(r.Events, newEvent(model.Origin{Kind: kindPod, Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}, f.Platform, "NotEnforced",
				"policy is NOT enforced on this pod: "+u.Detail))
		}
	}
	if !r.Node.Enforced {
		r.Events = append(r.Events, newEvent(model.Origin{Kind: kindNode, Name: f.Node, UID: f.Node}, f.Platform, r.Node.Reason, r.Node.Message))
	}
	slices.SortFunc(r.Events, func(a, b Event) int { return cmp.Or(a.Object.Compare(b.Object), strings.Compare(a.Name, b.Name)) })
	return r
}

const (
	kindPod           = "Pod"
	kindNode          = "Node"
	kindNetworkPolicy = "NetworkPolicy"
)

// ConditionPrefix is the prefix of all condition types.
const ConditionPrefix = "isthmus.dev/"

// ConditionType returns the type of a platform's conditions. On Windows the exactness depends on the
// version of HNS; on Linux it does not depend on the kernel.
func ConditionType(p model.Features) string {
	switch p.OS {
	case model.Linux:
		return ConditionPrefix + "EnforcedOnLinux"
	case model.Windows:
		return ConditionPrefix + "EnforcedOnWindows" + strings.Map(func(r rune) rune {
			if r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || r == '.' {
				return r
			}
			return -1
		}, p.Platform)
	}
	return ConditionPrefix + "Enforced"
}

// statement collects the findings about one object.
type statement struct {
	effect model.Effect
	items  []string
}

// maxItems and maxNote bound a message; maxNote is the API's limit for events.
const (
	maxItems = 8
	maxNote  = 1024
)

func (s *statement) add(effect model.Effect, item string) {
	if effect == model.Refused {
		s.effect = effect
	}
	if !slices.Contains(s.items, item) {
		s.items = append(s.items, item)
	}
}

// text returns the same text on all nodes with the same findings.
func (s *statement) text() (reason, message string) {
	reason = "OverBlocks"
	if s.effect == model.Refused {
		reason = "Refused"
	}
	slices.Sort(s.items)
	items := s.items
	more := ""
	if len(items) > maxItems {
		more = fmt.Sprintf("; and %d more", len(items)-maxItems)
		items = items[:maxItems]
	}
	return reason, strings.Join(items, "; ") + more
}

// statements returns the findings by policy or pod that is not enforced exactly.
func statements(f Facts, remarks map[model.Origin]Remarks) map[model.Origin]*statement {
	all := make(map[model.Origin]*statement)
	of := func(o model.Origin) *statement {
		if all[o] == nil {
			all[o] = &statement{}
		}
		return all[o]
	}
	policies := f.Snapshot.SortedPolicies()
	for _, g := range grouped(policy.Enforce(policies, f.Platform, f.Unsupported)) {
		of(g.Policy).add(g.Effect, g.String())
	}
	// A finding about a pod is reported on the policies that select it.
	for _, u := range f.Unsupported {
		if u.Policy.Kind != kindPod {
			continue
		}
		pod, ok := f.Snapshot.Pods.Get(model.PodID{Namespace: u.Policy.Namespace, Name: u.Policy.Name})
		if !ok {
			continue
		}
		item := fmt.Sprintf("%s: %s: %s", u.Construct, u.Effect, u.Reason)
		of(model.Origin{Kind: kindPod, Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}).add(u.Effect, item)
		for _, p := range policies {
			if p.Subject.MatchesNamespace(f.Snapshot.Namespace(pod.Namespace)) && p.Subject.Pods.Matches(pod.Labels) {
				of(p.Origin).add(u.Effect, "pods that it selects: "+item)
			}
		}
	}
	for _, p := range policies {
		noted := remarks[p.Origin.Key()]
		for _, n := range noted.Notes {
			effect := model.OverBlocks
			if noted.Bad {
				effect = model.Refused
			}
			of(p.Origin).add(effect, n)
		}
	}
	addDenyLists(f, remarks, of)
	return all
}

// addDenyLists adds the findings about deny lists: entries that are left out, and what a node does not deny.
func addDenyLists(f Facts, remarks map[model.Origin]Remarks, of func(model.Origin) *statement) {
	for _, u := range f.Unsupported {
		if l, ok := f.Snapshot.DenyLists.Get(u.Policy.Name); ok && u.Policy.Kind == model.KindDenyList {
			of(l.Origin()).add(u.Effect, fmt.Sprintf("%s: %s: %s", u.Construct, u.Effect, u.Reason))
		}
	}
	for _, l := range f.Snapshot.DenyLists.All() {
		for _, n := range remarks[l.Origin().Key()].Notes {
			of(l.Origin()).add(model.Refused, n)
		}
	}
}

// group is a set of constructs that one rule cannot enforce for the same reason.
type group struct {
	policy.Enforceability
	constructs []string
}

func (g *group) String() string {
	return fmt.Sprintf("%s rule %d (%s): %s: %s", g.Direction, g.Rule, strings.Join(g.constructs, ", "), g.Effect, g.Reason)
}

func grouped(all []policy.Enforceability) []*group {
	type key struct {
		policy    model.Origin
		direction model.Direction
		rule      int
		effect    model.Effect
		reason    string
	}
	byKey := make(map[key]*group)
	var groups []*group
	for _, e := range all {
		if e.Exact {
			continue
		}
		k := key{e.Policy, e.Direction, e.Rule, e.Effect, e.Reason}
		if byKey[k] == nil {
			byKey[k] = &group{Enforceability: e}
			groups = append(groups, byKey[k])
		}
		byKey[k].constructs = append(byKey[k].constructs, e.Construct)
	}
	return groups
}

func nodeCondition(f Facts) NodeCondition {
	switch {
	case len(f.Problems) > 0:
		reason := "Degraded"
		if !f.Ready {
			reason = "NotInForce"
		}
		s := statement{items: slices.Clone(f.Problems)}
		_, message := s.text()
		return NodeCondition{false, reason, message}
	case !f.Ready:
		return NodeCondition{false, "Starting", "this agent has not put any policy in force yet"}
	}
	return NodeCondition{true, "InForce", "policy is in force"}
}

func newEvent(o model.Origin, p model.Features, reason, message string) Event {
	note := strings.TrimPrefix(ConditionType(p), ConditionPrefix) + ": " + message
	if len(note) > maxNote {
		note = strings.ToValidUTF8(note[:maxNote-3], "") + "..."
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{o.Kind, o.Namespace, o.Name, o.UID, reason, note}, "\x00")))
	name := o.Name
	if len(name) > 200 { // a name may have 253
		name = strings.TrimRight(name[:200], ".-")
	}
	return Event{Object: o, Reason: reason, Action: "Enforce", Note: note, Name: fmt.Sprintf("%s.%x", name, sum[:8]),
		OfNode: o.Kind == kindPod || o.Kind == kindNode}
}
