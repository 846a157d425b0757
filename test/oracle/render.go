// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/isthmus-net/isthmus/common/model"
)

func (w *writer) policy(p *model.Policy) {
	switch {
	case p.Tier == model.TierNetworkPolicy:
		w.networkPolicy(p)
	case w.form == Cluster || p.Tier == model.TierAdmin:
		w.clusterPolicy(p, w.form == Admin)
	case !w.baseline:
		w.baseline = true
		w.clusterPolicy(p, true)
	}
}

func (w *writer) networkPolicy(p *model.Policy) {
	o := networkingv1.NetworkPolicy{TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: p.Origin.Name, Namespace: p.Origin.Namespace}}
	o.Spec.PodSelector = selector(p.Subject.Pods)
	for d, t := range []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress} {
		if p.Isolates[d] {
			o.Spec.PolicyTypes = append(o.Spec.PolicyTypes, t)
		}
	}
	for _, r := range p.Rules[model.Ingress] {
		o.Spec.Ingress = append(o.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: peers(r, p.Origin.Namespace), Ports: ports(r)})
	}
	for _, r := range p.Rules[model.Egress] {
		o.Spec.Egress = append(o.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: peers(r, p.Origin.Namespace), Ports: ports(r)})
	}
	w.add(o)
}

func peers(r model.Rule, own string) []networkingv1.NetworkPolicyPeer {
	var out []networkingv1.NetworkPolicyPeer
	for _, p := range r.Peers {
		if p.Kind == model.PeerBlock {
			b := &networkingv1.IPBlock{CIDR: p.Block.CIDR.String()}
			for _, e := range p.Block.Except {
				b.Except = append(b.Except, e.String())
			}
			out = append(out, networkingv1.NetworkPolicyPeer{IPBlock: b})
			continue
		}
		pods, ns := selector(p.Pods.Pods), namespaces(p.Pods)
		peer := networkingv1.NetworkPolicyPeer{PodSelector: &pods, NamespaceSelector: &ns}
		if p.Pods.Namespace == own {
			peer.NamespaceSelector = nil
		} else if p.Pods.Pods.Everything() {
			peer.PodSelector = nil
		}
		out = append(out, peer)
	}
	return out
}

func ports(r model.Rule) []networkingv1.NetworkPolicyPort {
	var out []networkingv1.NetworkPolicyPort
	for _, m := range r.Ports {
		protocol := corev1.Protocol(m.Protocol.String())
		p := networkingv1.NetworkPolicyPort{Protocol: &protocol}
		if m.Protocol == model.TCP && m.First == 80 {
			p.Protocol = nil // the default
		}
		number, name := intstr.FromInt32(int32(m.First)), intstr.FromString(m.Name)
		switch {
		case m.Name != "":
			p.Port = &name
		case m.First == 0: // every port
		default:
			p.Port = &number
			if end := int32(m.Last); m.Last != m.First {
				p.EndPort = &end
			}
		}
		out = append(out, p)
	}
	return out
}

// object is an API object or a part of one, as JSON.
type object = map[string]any

// clusterPolicy writes a policy of the Admin or Baseline tier, as v1alpha1 or
// as v1alpha2.
func (w *writer) clusterPolicy(p *model.Policy, alpha1 bool) {
	spec := object{"subject": object{"namespaces": namespaces(p.Subject)}}
	if !p.Subject.Pods.Everything() {
		spec["subject"] = object{"pods": object{"namespaceSelector": namespaces(p.Subject), "podSelector": selector(p.Subject.Pods)}}
	}
	o := object{"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": object{"name": p.Origin.Name}, "spec": spec}
	if alpha1 {
		o["apiVersion"], o["kind"] = "policy.networking.k8s.io/v1alpha1", "AdminNetworkPolicy"
	} else {
		spec["tier"] = p.Tier.String()
	}
	baseline := alpha1 && p.Tier == model.TierBaseline
	if baseline {
		o["kind"], o["metadata"] = "BaselineAdminNetworkPolicy", object{"name": "default"}
	} else {
		spec["priority"] = w.priority(p)
	}
	for d, field := range []string{"ingress", "egress"} {
		var rules []object
		for _, r := range p.Rules[d] {
			if rule := clusterRule(r, model.Direction(d), alpha1, baseline); rule != nil {
				rules = append(rules, rule)
			}
		}
		if rules != nil {
			spec[field] = rules
		}
	}
	w.add(o)
}

// priority returns the policy's priority, or the next free one in its tier.
func (w *writer) priority(p *model.Policy) int {
	n := p.Priority
	for w.taken[n+1000*int(p.Tier)] {
		n++
	}
	w.taken[n+1000*int(p.Tier)] = true
	return n
}

// clusterRule returns nil for a rule without peers that the API can express.
func clusterRule(r model.Rule, d model.Direction, alpha1, baseline bool) object {
	action := r.Action.String()
	if alpha1 && r.Action == model.ActionAccept {
		action = "Allow"
	}
	if baseline && r.Action == model.ActionPass {
		action = "Deny"
	}
	list, addresses := clusterPeers(r, d, alpha1)
	rule := object{"action": action, [...]string{"from", "to"}[d]: list}
	if !r.AnyPort {
		field, convert := "protocols", protocolOf
		if alpha1 {
			field, convert = "ports", portOf
		}
		var ports []object
		for _, m := range r.Ports {
			if m.Name == "" || !addresses || alpha1 {
				ports = append(ports, convert(m))
			}
		}
		if ports == nil {
			return nil
		}
		rule[field] = ports
	}
	if list == nil {
		return nil
	}
	return rule
}

// clusterPeers returns the peers, and whether some are addresses, which v1alpha2 does not allow
// together with named ports.
func clusterPeers(r model.Rule, d model.Direction, alpha1 bool) (out []object, addresses bool) {
	if r.AnyPeer {
		out = append(out, object{"namespaces": object{}})
		if d == model.Egress {
			out = append(out, object{"networks": []string{"0.0.0.0/0", "::/0"}})
		}
		return out, d == model.Egress
	}
	for _, p := range r.Peers {
		switch {
		case p.Kind == model.PeerPods && p.Pods.Pods.Everything():
			out = append(out, object{"namespaces": namespaces(p.Pods)})
		case p.Kind == model.PeerPods:
			out = append(out, object{"pods": object{"namespaceSelector": namespaces(p.Pods), "podSelector": selector(p.Pods.Pods)}})
		case d == model.Ingress: // ingress peers of the API are pods only
		case p.Kind == model.PeerUnknown && !alpha1:
			out = append(out, object{})
		case p.Kind == model.PeerNodes:
			out, addresses = append(out, object{"nodes": selector(p.Nodes)}), true
		case p.Kind == model.PeerBlock:
			out, addresses = append(out, object{"networks": []string{p.Block.CIDR.String()}}), true
		}
	}
	return out, addresses
}

// bounds returns the range of ports that a match means.
func bounds(m model.PortMatch) (first, last int) { return max(1, int(m.First)), int(m.Last) }

// protocolOf returns the match in the form of v1alpha2.
func protocolOf(m model.PortMatch) object {
	if m.Name != "" {
		return object{"destinationNamedPort": m.Name}
	}
	first, last := bounds(m)
	port := object{"range": object{"start": first, "end": last}}
	if first == last {
		port = object{"number": first}
	}
	return object{strings.ToLower(m.Protocol.String()): object{"destinationPort": port}}
}

// portOf returns the match in the form of v1alpha1.
func portOf(m model.PortMatch) object {
	if m.Name != "" {
		return object{"namedPort": m.Name}
	}
	first, last := bounds(m)
	if first == last {
		return object{"portNumber": object{"protocol": m.Protocol.String(), "port": first}}
	}
	return object{"portRange": object{"protocol": m.Protocol.String(), "start": first, "end": last}}
}
