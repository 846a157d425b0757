// SPDX-License-Identifier: Apache-2.0

package convert

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"

	"github.com/isthmus-net/isthmus/common/model"
)

const (
	kindAdminNetworkPolicy         = "AdminNetworkPolicy"
	kindBaselineAdminNetworkPolicy = "BaselineAdminNetworkPolicy"
)

func adminNetworkPolicyKind() Kind {
	return clusterPolicyKind(kindAdminNetworkPolicy, "adminnetworkpolicies", convertAdminNetworkPolicy, "v1alpha1")
}

func baselineAdminNetworkPolicyKind() Kind {
	return clusterPolicyKind(kindBaselineAdminNetworkPolicy, "baselineadminnetworkpolicies", convertBaselineAdminNetworkPolicy, "v1alpha1")
}

// convertAdminNetworkPolicy converts an AdminNetworkPolicy v1alpha1, the predecessor of
// ClusterNetworkPolicy in the Admin tier.
func convertAdminNetworkPolicy(anp *v1alpha1.AdminNetworkPolicy, s Strictness) converted {
	c := &clusterPolicy{kind: kindAdminNetworkPolicy, meta: &anp.ObjectMeta, tier: model.TierAdmin, priority: anp.Spec.Priority,
		maxItems: 100, portsField: "ports",
		actions: map[string]model.Action{"Allow": model.ActionAccept, "Deny": model.ActionDeny, "Pass": model.ActionPass}}
	c.subject = clusterPeer{namespaces: anp.Spec.Subject.Namespaces, pods: alpha1Pods(anp.Spec.Subject.Pods)}
	for i, r := range anp.Spec.Ingress {
		c.addIngress(r.Name, string(r.Action), r.From, r.Ports, i)
	}
	for i, r := range anp.Spec.Egress {
		rule := clusterRule{name: r.Name, action: string(r.Action)}
		rule.setPorts(r.Ports, field.NewPath("spec", "egress").Index(i).Child("ports"))
		for _, p := range r.To {
			rule.peers = append(rule.peers, clusterPeer{namespaces: p.Namespaces, pods: alpha1Pods(p.Pods), nodes: p.Nodes,
				networks: texts(p.Networks), domainNames: texts(p.DomainNames)})
		}
		c.rules[model.Egress] = append(c.rules[model.Egress], rule)
	}
	return c.convert(s)
}

// convertBaselineAdminNetworkPolicy converts the BaselineAdminNetworkPolicy v1alpha1. It has no priority,
// as there is only one. Among policies of the newer kind in the Baseline tier it comes last.
func convertBaselineAdminNetworkPolicy(banp *v1alpha1.BaselineAdminNetworkPolicy, s Strictness) converted {
	c := &clusterPolicy{kind: kindBaselineAdminNetworkPolicy, meta: &banp.ObjectMeta, tier: model.TierBaseline, priority: maxPriority,
		maxItems: 100, portsField: "ports",
		actions: map[string]model.Action{"Allow": model.ActionAccept, "Deny": model.ActionDeny}}
	c.subject = clusterPeer{namespaces: banp.Spec.Subject.Namespaces, pods: alpha1Pods(banp.Spec.Subject.Pods)}
	for i, r := range banp.Spec.Ingress {
		c.addIngress(r.Name, string(r.Action), r.From, r.Ports, i)
	}
	for i, r := range banp.Spec.Egress {
		rule := clusterRule{name: r.Name, action: string(r.Action)}
		rule.setPorts(r.Ports, field.NewPath("spec", "egress").Index(i).Child("ports"))
		for _, p := range r.To {
			rule.peers = append(rule.peers, clusterPeer{namespaces: p.Namespaces, pods: alpha1Pods(p.Pods), nodes: p.Nodes,
				networks: texts(p.Networks)})
		}
		c.rules[model.Egress] = append(c.rules[model.Egress], rule)
	}
	out := c.convert(s)
	if s == Written && banp.Name != "" && banp.Name != "default" {
		out.errs = append(out.errs, field.Invalid(field.NewPath("metadata", "name"), banp.Name, "only one can exist, and its name must be default"))
	}
	return out
}

func (c *clusterPolicy) addIngress(name, action string, from []v1alpha1.AdminNetworkPolicyIngressPeer, ports *[]v1alpha1.AdminNetworkPolicyPort, index int) {
	rule := clusterRule{name: name, action: action}
	rule.setPorts(ports, field.NewPath("spec", "ingress").Index(index).Child("ports"))
	for _, p := range from {
		rule.peers = append(rule.peers, clusterPeer{namespaces: p.Namespaces, pods: alpha1Pods(p.Pods)})
	}
	c.rules[model.Ingress] = append(c.rules[model.Ingress], rule)
}

func alpha1Pods(p *v1alpha1.NamespacedPod) *podsPeer {
	if p == nil {
		return nil
	}
	return &podsPeer{namespaces: p.NamespaceSelector, pods: p.PodSelector}
}

func (r *clusterRule) setPorts(list *[]v1alpha1.AdminNetworkPolicyPort, path *field.Path) {
	if list == nil {
		r.anyPort = true
		return
	}
	for i := range *list {
		r.ports = append(r.ports, alpha1Port(&(*list)[i], path.Index(i)))
	}
}

func alpha1Port(p *v1alpha1.AdminNetworkPolicyPort, path *field.Path) clusterPort {
	out := clusterPort{unknown: true}
	take := func(m model.PortMatch, errs field.ErrorList) {
		if !out.unknown {
			errs = append(errs, field.Forbidden(path, "must specify exactly one of portNumber, portRange and namedPort"))
		}
		out.unknown, out.match = false, m
		out.errs = append(out.errs, errs...)
	}
	if n := p.PortNumber; n != nil {
		at := path.Child("portNumber")
		proto, errs := alpha1Protocol(n.Protocol, at)
		port, more := portNumber(n.Port, at.Child("port"))
		take(model.PortMatch{Protocol: proto, First: port, Last: port}, append(errs, more...))
	}
	if r := p.PortRange; r != nil {
		at := path.Child("portRange")
		proto, errs := alpha1Protocol(r.Protocol, at)
		first, last, more := portRange(r.Start, r.End, at)
		take(model.PortMatch{Protocol: proto, First: first, Last: last}, append(errs, more...))
	}
	if p.NamedPort != nil {
		var errs field.ErrorList
		if *p.NamedPort == "" {
			errs = field.ErrorList{field.Required(path.Child("namedPort"), "the name of a container port")}
		}
		take(model.PortMatch{Protocol: model.AnyProtocol, Name: *p.NamedPort}, errs)
	}
	return out
}

// alpha1Protocol: "If not specified, this field defaults to TCP."
func alpha1Protocol(p corev1.Protocol, path *field.Path) (model.Protocol, field.ErrorList) {
	if p == "" {
		return model.TCP, nil
	}
	return protocol(p, path.Child("protocol"))
}
