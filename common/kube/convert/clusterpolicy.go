// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/isthmus-net/isthmus/common/model"
)

// clusterPolicyKind returns a kind of cluster-wide policy, whose objects decode to a T.
func clusterPolicyKind[T any, P apiObject[T]](name, resource string, convert func(*T, Strictness) converted, versions ...string) Kind {
	return Kind{Name: name, Group: clusterPolicyGroup, Versions: versions, Resource: resource, Policy: true,
		Read:   readClusterPolicy[T, P](convert),
		Put:    putPolicy,
		Record: recordClusterPolicy(convert),
		store:  policies(name)}
}

// readClusterPolicy decodes a stored policy as far as its API is known.
func readClusterPolicy[T any, P apiObject[T]](convert func(*T, Strictness) converted) func(*Kind, []byte, Strictness) Draft {
	return func(k *Kind, raw []byte, s Strictness) Draft {
		raw = integers(raw)
		var lost salvaged
		var d Draft
		o := new(T)
		if s == Stored {
			o, lost = salvage[T](raw)
		}
		if len(lost.errs) == 0 {
			written, draft := decode[T](k, raw, s)
			if len(draft.Problems) > 0 {
				return draft
			}
			if s == Written {
				o, d = written, draft
			}
		}
		d.Meta = P(o)
		d.Convert = func() Result {
			c := convert(o, s)
			c.lose(lost)
			if s == Written {
				required, usual := missing(raw, k.Name)
				c.errs, c.warnings = append(required, c.errs...), append(c.warnings, Remarks(usual)...)
			}
			return Result{Value: c.policy, Warnings: c.warnings, Errs: c.errs, Enforced: c.enforced}
		}
		return d
	}
}

// clusterPolicy holds the common parts of ClusterNetworkPolicy, AdminNetworkPolicy and
// BaselineAdminNetworkPolicy, with converted ports.
type clusterPolicy struct {
	kind     string
	meta     *metav1.ObjectMeta
	tier     model.Tier
	priority int32
	subject  clusterPeer // namespaces or pods only
	rules    [2][]clusterRule
	// actions maps the action spellings of the kind.
	actions map[string]model.Action
	// maxItems bounds the lists of rules, peers and ports.
	maxItems int
	// portsField is the name of the field with the list of ports.
	portsField string
	// unplaced is true if the tier or priority of the policy is unknown.
	unplaced bool
}

// converted is the result of converting a cluster-wide policy.
type converted struct {
	// policy is the part that can be enforced safely.
	policy *model.Policy
	// warnings are remarks on rules that are not enforced as written.
	warnings []Remark
	// errs make the object invalid. enforced describes in one sentence how an invalid policy is enforced.
	errs     field.ErrorList
	enforced string
}

// clusterRule is one rule, with ports converted.
type clusterRule struct {
	name, action string
	peers        []clusterPeer
	// anyPort is true if the list of ports is absent.
	anyPort bool
	ports   []clusterPort
}

// clusterPeer is one peer. Exactly one field must be set.
type clusterPeer struct {
	namespaces  *metav1.LabelSelector
	pods        *podsPeer
	nodes       *metav1.LabelSelector
	networks    []string
	domainNames []string
}

type podsPeer struct {
	namespaces, pods metav1.LabelSelector
}

// clusterPort is one converted alternative of a list of ports.
type clusterPort struct {
	match model.PortMatch
	// unknown is true if no field is set that this version supports.
	unknown bool
	errs    field.ErrorList
}

// maxNetworks bounds the lists networks and domainNames of one peer, and maxRuleName the name of a rule, in
// characters.
const (
	maxNetworks = 25
	maxRuleName = 100
	maxPriority = 1000
)

// convert validates and converts. With errors the policy still denies everything that it may be meant to
// deny. Rules with errors fail closed, as the API demands for unknown rules. If its pods or its place among
// the policies are unknown, it applies to all pods that it may select, if need be before all other
// policies, and can only deny.
func (c *clusterPolicy) convert(s Strictness) converted {
	p := &model.Policy{Origin: model.Origin{Kind: c.kind, Name: c.meta.Name, UID: string(c.meta.UID)},
		Tier: c.tier, Priority: min(int(c.priority), maxPriority)}
	spec := field.NewPath("spec")
	out := converted{policy: p, errs: validateCustomMeta(c.meta, s)}
	if c.priority < 0 {
		c.unplaced = true // the known part of the order is not reliable
	}
	if c.priority < 0 || c.priority > maxPriority {
		out.errs = append(out.errs, field.Invalid(spec.Child("priority"), c.priority, "must be between 0 and 1000, inclusive"))
	}
	if c.unplaced {
		p.Tier, p.Priority = model.TierAdmin, unknownPriority
	}
	subject, errs := c.convertSubject(s, spec.Child("subject"))
	p.Subject = subject
	out.errs = append(out.errs, errs...)
	doubt := len(errs) > 0 || c.unplaced
	var closed []string
	for _, d := range model.Directions {
		path := spec.Child(d.String())
		if len(c.rules[d]) > c.maxItems {
			out.errs = append(out.errs, field.TooMany(path, len(c.rules[d]), c.maxItems))
		}
		for i := range c.rules[d] {
			r, notes, errs := c.convertRule(&c.rules[d][i], i, d, s, path.Index(i))
			if len(errs) > 0 {
				closed = append(closed, fmt.Sprintf("%s rule %d %s", d, i, strings.TrimPrefix(failsClosed(r.Action), "the rule ")))
			}
			if doubt {
				r = inDoubt(r)
			}
			out.errs = append(out.errs, errs...)
			out.warnings = append(out.warnings, notes...)
			p.Rules[d] = append(p.Rules[d], r)
		}
	}
	out.enforced = c.enforced(p, doubt, closed)
	return out
}

// unknownPriority sorts before every priority that the API allows.
const unknownPriority = math.MinInt32

// inDoubt returns the safe part of a rule whose policy may not select the pod, or whose place is unknown.
// It must not allow traffic that is denied without it.
func inDoubt(r model.Rule) model.Rule {
	switch r.Action {
	case model.ActionAccept:
		r.AnyPeer, r.Peers = false, []model.Peer{{Kind: model.PeerUnknown}}
		r.AnyPort, r.Ports = true, nil
	case model.ActionPass:
		if !slices.ContainsFunc(r.Peers, func(p model.Peer) bool { return p.Kind == model.PeerUnknown }) {
			r.Action = model.ActionMayPass
		}
	}
	return r
}

// enforced describes how an invalid policy is enforced.
func (c *clusterPolicy) enforced(p *model.Policy, doubt bool, closed []string) string {
	text := "its rules are enforced as written"
	if doubt {
		what := "it is not known which pods the policy selects: its Deny rules apply to " + possible(p.Subject)
		if c.unplaced {
			what = "the tier or priority of the policy is not known: its Deny rules come before all other rules, for " + possible(p.Subject)
		}
		text = what + ", its Accept rules match nothing, and no later rule of the tier accepts traffic that its Pass rules match"
	}
	if len(closed) > 0 {
		list := closed[:min(len(closed), maxNamed)]
		text += ", but " + strings.Join(list, ", ")
		if more := len(closed) - len(list); more > 0 {
			text += fmt.Sprintf(" and %d more fail closed", more)
		}
	}
	return text
}

// possible names the pods that a policy may select.
func possible(s model.PodSelector) string {
	if s.Namespace == "" && s.Namespaces.Everything() && s.Pods.Everything() {
		return "every pod"
	}
	return "every pod of " + Bounded(s.String(), MaxValue)
}

// maxNamed bounds the number of rules in one sentence.
const maxNamed = 5

// convertSubject returns the pods that a policy selects. With errors it returns all pods that the policy
// may select.
func (c *clusterPolicy) convertSubject(s Strictness, path *field.Path) (model.PodSelector, field.ErrorList) {
	switch n := c.subject.set(); {
	case n == 0:
		return model.PodSelector{}, field.ErrorList{field.Required(path, "must specify namespaces or pods")}
	case n > 1:
		return model.PodSelector{}, field.ErrorList{field.Forbidden(path, "must specify only one of namespaces and pods")}
	}
	peers, errs := c.subject.convert(s, path)
	if len(errs) == 0 {
		return peers[0].Pods, nil
	}
	if c.subject.pods == nil {
		return model.PodSelector{Namespaces: wider(c.subject.namespaces, s)}, errs
	}
	return model.PodSelector{Namespaces: wider(&c.subject.pods.namespaces, s), Pods: wider(&c.subject.pods.pods, s)}, errs
}

// convertRule converts one rule. If any part is unknown or wrong, the whole rule fails closed, as the API
// demands: 'For "Accept" rules, "fail closed" means: "treat the rule as matching no traffic". For "Deny"
// and "Pass" rules, "fail closed" means: "treat the rule as a 'Deny all' rule".'
func (c *clusterPolicy) convertRule(cr *clusterRule, index int, d model.Direction, s Strictness, path *field.Path) (model.Rule, []Remark, field.ErrorList) {
	r := model.Rule{Index: index, Name: cr.name, AnyPort: cr.anyPort}
	errs := c.checkRule(cr, path)
	action, ok := c.actions[cr.action]
	if r.Action = action; !ok {
		r.Action = model.ActionDeny
		errs = append(errs, field.NotSupported(path.Child("action"), cr.action, keys(c.actions)))
	}
	var warnings []Remark
	closed := false
	warn := func(path *field.Path, why string) {
		closed = true
		warnings = append(warnings, Remark{path.String(), why + "; " + failsClosed(r.Action)})
	}
	peersPath := path.Child("from")
	if d == model.Egress {
		peersPath = path.Child("to")
	}
	errs = append(errs, c.checkCount(len(cr.peers), peersPath)...)
	for i := range cr.peers {
		peer, at := &cr.peers[i], peersPath.Index(i)
		switch n := peer.set(); {
		case n == 0:
			warn(at, "no field that this version supports is set")
			continue
		case n > 1:
			errs = append(errs, field.Forbidden(at, "must specify exactly one kind of peer"))
			continue
		}
		peers, more := peer.convert(s, at)
		errs = append(errs, more...)
		r.Peers = append(r.Peers, peers...)
		if peer.domainNames != nil {
			warn(at.Child("domainNames"), "domain names are not supported, as nodes do not track DNS: list the addresses in networks")
		}
	}
	if !cr.anyPort {
		errs = append(errs, c.checkCount(len(cr.ports), path.Child(c.portsField))...)
	}
	for i, p := range cr.ports {
		errs = append(errs, p.errs...)
		r.Ports = append(r.Ports, p.match)
		if p.unknown {
			warn(path.Child(c.portsField).Index(i), "no field that this version supports is set")
		}
	}
	warnings = append(warnings, Remarks(checkNamedPorts(cr, path))...)
	if closed || len(errs) > 0 {
		r.AnyPeer, r.Peers = false, []model.Peer{{Kind: model.PeerUnknown}}
		r.AnyPort, r.Ports = true, nil
	}
	return r, warnings, errs
}

func failsClosed(a model.Action) string {
	if a == model.ActionAccept {
		return "the rule matches nothing"
	}
	return "the rule denies everything"
}

func (c *clusterPolicy) checkRule(cr *clusterRule, path *field.Path) field.ErrorList {
	if n := utf8.RuneCountInString(cr.name); n > maxRuleName {
		return field.ErrorList{field.Invalid(path.Child("name"), cr.name, fmt.Sprintf("%d characters: may not be more than %d", n, maxRuleName))}
	}
	return nil
}

// checkCount bounds a list that must not be empty.
func (c *clusterPolicy) checkCount(n int, path *field.Path) field.ErrorList {
	switch {
	case n == 0:
		return field.ErrorList{field.Required(path, "must have at least one item")}
	case n > c.maxItems:
		return field.ErrorList{field.TooMany(path, n, c.maxItems)}
	}
	return nil
}

// checkNamedPorts warns: "networks/nodes/domainNames peer cannot be set with namedPorts since there are no
// namedPorts for networks/nodes/domainNames". Only the experimental CRD has the rule, so other API servers
// accept such objects. The name then matches on pods only.
func checkNamedPorts(cr *clusterRule, path *field.Path) field.ErrorList {
	named := false
	for _, p := range cr.ports {
		named = named || p.match.Name != ""
	}
	for _, p := range cr.peers {
		if named && (p.nodes != nil || p.networks != nil || p.domainNames != nil) {
			return field.ErrorList{field.Forbidden(path,
				"networks, nodes and domainNames have no named ports: the name matches on pods only; use port numbers, or a separate rule for these peers")}
		}
	}
	return nil
}

// set counts the fields that are set.
func (p *clusterPeer) set() int {
	n := 0
	for _, set := range []bool{p.namespaces != nil, p.pods != nil, p.nodes != nil, p.networks != nil, p.domainNames != nil} {
		if set {
			n++
		}
	}
	return n
}

// convert converts the one field that is set; networks become several peers.
func (p *clusterPeer) convert(s Strictness, path *field.Path) ([]model.Peer, field.ErrorList) {
	switch {
	case p.namespaces != nil:
		ns, errs := selector(p.namespaces, s, path.Child("namespaces"))
		return []model.Peer{{Kind: model.PeerPods, Pods: model.PodSelector{Namespaces: ns}}}, errs
	case p.pods != nil:
		ns, errs := selector(&p.pods.namespaces, s, path.Child("pods", "namespaceSelector"))
		pods, more := selector(&p.pods.pods, s, path.Child("pods", "podSelector"))
		return []model.Peer{{Kind: model.PeerPods, Pods: model.PodSelector{Namespaces: ns, Pods: pods}}}, append(errs, more...)
	case p.nodes != nil:
		nodes, errs := selector(p.nodes, s, path.Child("nodes"))
		return []model.Peer{{Kind: model.PeerNodes, Nodes: nodes}}, errs
	case p.networks != nil:
		return convertNetworks(p.networks, path.Child("networks"))
	}
	return nil, checkDomainNames(p.domainNames, path.Child("domainNames"))
}

// recordClusterPolicy builds records of a kind of cluster-wide policy. The objects arrive untyped, so that
// an object that does not fit the type hides no other.
func recordClusterPolicy[T any](convert func(*T, Strictness) converted) func(runtime.Object) *Record {
	return func(o runtime.Object) *Record {
		u, ok := o.(*unstructured.Unstructured)
		if !ok {
			return nil
		}
		raw, err := json.Marshal(u.Object)
		if err != nil {
			return nil
		}
		typed, lost := salvage[T](raw)
		c := convert(typed, Stored)
		c.lose(lost)
		r := recordOf(u, c.policy, c.errs)
		r.enforced, r.Status = c.enforced, statusOf(u)
		for _, w := range c.warnings {
			r.Notes = append(r.Notes, w.String())
		}
		return r
	}
}
