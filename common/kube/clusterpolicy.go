// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/isthmus-net/isthmus/common/model"
)

// clusterPolicy is what ClusterNetworkPolicy, AdminNetworkPolicy and
// BaselineAdminNetworkPolicy have in common, with ports converted already.
type clusterPolicy struct {
	kind     string
	meta     *metav1.ObjectMeta
	tier     model.Tier
	priority int32
	subject  clusterPeer // namespaces or pods only
	rules    [2][]clusterRule
	// actions are the spellings that the kind knows.
	actions map[string]model.Action
	// maxItems bounds the lists of rules, peers and ports.
	maxItems int
	// portsField is what the kind calls the list of ports.
	portsField string
	// lax: the kind's successor has rules that objects of this kind in use do
	// not keep to; breaking them is worth a warning only.
	lax bool
}

// clusterRule is one rule, with ports converted.
type clusterRule struct {
	name, action string
	peers        []clusterPeer
	// anyPort: the list of ports is absent.
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
	// unknown: no field that this version knows is set.
	unknown bool
	errs    field.ErrorList
}

// maxNetworks bounds the lists networks and domainNames of one peer, and
// maxRuleName the name of a rule, in characters.
const (
	maxNetworks = 25
	maxRuleName = 100
	maxPriority = 1000
)

// convert validates and converts. With errors it still returns what can be
// enforced safely: rules with errors fail closed. It returns nil when not even
// the selected pods, or the place among the other policies, are known.
// Warnings tell which rules fail closed because this version does not know, or
// cannot enforce, what they ask.
func (c *clusterPolicy) convert(s strictness) (*model.Policy, []remark, field.ErrorList) {
	p := &model.Policy{Origin: model.Origin{Kind: c.kind, Name: c.meta.Name, UID: string(c.meta.UID)},
		Tier: c.tier, Priority: int(c.priority)}
	spec := field.NewPath("spec")
	errs := validateMeta(c.meta, false, s)
	if c.priority < 0 || c.priority > maxPriority {
		errs = append(errs, field.Invalid(spec.Child("priority"), c.priority, "must be between 0 and 1000, inclusive"))
	}
	subject, more := c.convertSubject(s, spec.Child("subject"))
	p.Subject = subject
	if errs = append(errs, more...); len(errs) > 0 {
		p = nil
	}
	var rules [2][]model.Rule
	var warnings []remark
	for _, d := range model.Directions {
		path := spec.Child(d.String())
		if len(c.rules[d]) > c.maxItems {
			errs = append(errs, field.TooMany(path, len(c.rules[d]), c.maxItems))
		}
		for i := range c.rules[d] {
			r, notes, more := c.convertRule(&c.rules[d][i], i, d, s, path.Index(i))
			errs = append(errs, more...)
			warnings = append(warnings, notes...)
			rules[d] = append(rules[d], r)
		}
	}
	if p != nil {
		p.Rules = rules
	}
	return p, warnings, errs
}

func (c *clusterPolicy) convertSubject(s strictness, path *field.Path) (model.PodSelector, field.ErrorList) {
	switch n := c.subject.set(); {
	case n == 0:
		return model.PodSelector{}, field.ErrorList{field.Required(path, "must specify namespaces or pods")}
	case n > 1:
		return model.PodSelector{}, field.ErrorList{field.Forbidden(path, "must specify only one of namespaces and pods")}
	}
	peers, errs := c.subject.convert(s, path)
	if len(errs) > 0 {
		return model.PodSelector{}, errs
	}
	return peers[0].Pods, nil
}

// convertRule converts one rule. If anything in it is unknown or wrong the
// whole rule fails closed, as the API asks: 'For "Accept" rules, "fail closed"
// means: "treat the rule as matching no traffic". For "Deny" and "Pass" rules,
// "fail closed" means: "treat the rule as a 'Deny all' rule".'
func (c *clusterPolicy) convertRule(cr *clusterRule, index int, d model.Direction, s strictness, path *field.Path) (model.Rule, []remark, field.ErrorList) {
	r := model.Rule{Index: index, Name: cr.name, AnyPort: cr.anyPort}
	errs := c.checkRule(cr, path)
	action, ok := c.actions[cr.action]
	if r.Action = action; !ok {
		r.Action = model.ActionDeny
		errs = append(errs, field.NotSupported(path.Child("action"), cr.action, keys(c.actions)))
	}
	var warnings []remark
	closed := false
	warn := func(path *field.Path, why string) {
		closed = true
		warnings = append(warnings, remark{path.String(), why + "; " + failsClosed(r.Action)})
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
			warn(at, "no field that this version knows is set")
			continue
		case n > 1:
			errs = append(errs, field.Forbidden(at, "must specify exactly one kind of peer"))
			continue
		}
		peers, more := peer.convert(s, at)
		errs = append(errs, more...)
		r.Peers = append(r.Peers, peers...)
		if peer.domainNames != nil {
			warn(at.Child("domainNames"), "domain names are refused, as nodes do not follow DNS: list the addresses in networks")
		}
	}
	if !cr.anyPort {
		errs = append(errs, c.checkCount(len(cr.ports), path.Child(c.portsField))...)
	}
	for i, p := range cr.ports {
		errs = append(errs, p.errs...)
		r.Ports = append(r.Ports, p.match)
		if p.unknown {
			warn(path.Child(c.portsField).Index(i), "no field that this version knows is set")
		}
	}
	if more := checkNamedPorts(cr, path); s == written && !c.lax {
		errs = append(errs, more...)
	} else {
		warnings = append(warnings, remarks(more)...)
	}
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

// checkNamedPorts: "networks/nodes/domainNames peer cannot be set with
// namedPorts since there are no namedPorts for networks/nodes/domainNames".
// Only the experimental CRD has the rule, so stored objects may break it; the
// name then matches on pods and nowhere else.
func checkNamedPorts(cr *clusterRule, path *field.Path) field.ErrorList {
	named := false
	for _, p := range cr.ports {
		named = named || p.match.Name != ""
	}
	for _, p := range cr.peers {
		if named && (p.nodes != nil || p.networks != nil || p.domainNames != nil) {
			return field.ErrorList{field.Forbidden(path,
				"networks, nodes and domainNames have no named ports: use port numbers, or a rule of its own for these peers")}
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
func (p *clusterPeer) convert(s strictness, path *field.Path) ([]model.Peer, field.ErrorList) {
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
