// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"net/netip"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/isthmus-net/isthmus/common/model"
)

// adminRule holds the common fields of ingress and egress rules of v1alpha1. to is empty for
// ingress rules, whose peers are never addresses.
type adminRule struct {
	to    []v1alpha1.AdminNetworkPolicyEgressPeer
	ports *[]v1alpha1.AdminNetworkPolicyPort
	// drop removes the rule, which matches nothing.
	drop bool
}

// editAdmin calls edit for every rule of copies of the policies of v1alpha1.
func (o *Objects) editAdmin(edit func(*adminRule)) {
	admin := make([]*v1alpha1.AdminNetworkPolicy, len(o.AdminPolicies))
	for i, p := range o.AdminPolicies {
		n := p.DeepCopy()
		n.Spec.Ingress, n.Spec.Egress = nil, nil
		for _, r := range p.DeepCopy().Spec.Ingress {
			if e := edited(edit, nil, r.Ports); !e.drop {
				r.Ports = e.ports
				n.Spec.Ingress = append(n.Spec.Ingress, r)
			}
		}
		for _, r := range p.DeepCopy().Spec.Egress {
			if e := edited(edit, r.To, r.Ports); !e.drop {
				r.To, r.Ports = e.to, e.ports
				n.Spec.Egress = append(n.Spec.Egress, r)
			}
		}
		admin[i] = n
	}
	baseline := make([]*v1alpha1.BaselineAdminNetworkPolicy, len(o.BaselinePolicies))
	for i, p := range o.BaselinePolicies {
		n := p.DeepCopy()
		n.Spec.Ingress, n.Spec.Egress = nil, nil
		for _, r := range p.DeepCopy().Spec.Ingress {
			if e := edited(edit, nil, r.Ports); !e.drop {
				r.Ports = e.ports
				n.Spec.Ingress = append(n.Spec.Ingress, r)
			}
		}
		for _, r := range p.DeepCopy().Spec.Egress {
			var to []v1alpha1.AdminNetworkPolicyEgressPeer
			for _, p := range r.To {
				to = append(to, v1alpha1.AdminNetworkPolicyEgressPeer{Namespaces: p.Namespaces, Pods: p.Pods, Nodes: p.Nodes, Networks: p.Networks})
			}
			if e := edited(edit, to, r.Ports); !e.drop {
				r.To, r.Ports = nil, e.ports
				for _, p := range e.to {
					r.To = append(r.To, v1alpha1.BaselineAdminNetworkPolicyEgressPeer{Namespaces: p.Namespaces, Pods: p.Pods, Nodes: p.Nodes, Networks: p.Networks})
				}
				n.Spec.Egress = append(n.Spec.Egress, r)
			}
		}
		baseline[i] = n
	}
	o.AdminPolicies, o.BaselinePolicies = admin, baseline
}

func edited(edit func(*adminRule), to []v1alpha1.AdminNetworkPolicyEgressPeer, ports *[]v1alpha1.AdminNetworkPolicyPort) adminRule {
	r := adminRule{to: to, ports: ports}
	edit(&r)
	return r
}

// nodesAsNetworks replaces the labels of nodes by their addresses.
func nodesAsNetworks(c *Case, _ model.Flow) *Case {
	o := c.Objects
	o.editAdmin(func(r *adminRule) {
		var to []v1alpha1.AdminNetworkPolicyEgressPeer
		for _, p := range r.to {
			if p.Nodes == nil {
				to = append(to, p)
			} else if list := nodeNetworks(c, p.Nodes); list != nil {
				to = append(to, v1alpha1.AdminNetworkPolicyEgressPeer{Networks: list})
			}
		}
		r.drop = len(r.to) > 0 && to == nil
		r.to = to
	})
	return c.with(o)
}

func nodeNetworks(c *Case, s *metav1.LabelSelector) []v1alpha1.CIDR {
	var out []v1alpha1.CIDR
	matches, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return nil
	}
	for _, n := range c.Nodes {
		if !matches.Matches(labels.Set(n.Labels)) {
			continue
		}
		for _, na := range n.Status.Addresses {
			if a, err := netip.ParseAddr(na.Address); err == nil {
				out = append(out, v1alpha1.CIDR(a.String()+"/"+strconv.Itoa(a.BitLen())))
			}
		}
	}
	return out
}

// networksAsPods is blocksAsPods for v1alpha1.
func networksAsPods(o *Objects, f model.Flow) {
	o.editAdmin(func(r *adminRule) {
		var to []v1alpha1.AdminNetworkPolicyEgressPeer
		for _, p := range r.to {
			var networks []v1alpha1.CIDR
			pod := false
			for _, n := range p.Networks {
				if sameFamily(string(n), f.Dst) {
					networks = append(networks, n)
				}
				pod = pod || contains(string(n), f.Dst)
			}
			if p.Networks == nil || networks != nil {
				p.Networks = networks
				to = append(to, p)
			}
			if pod {
				to = append(to, v1alpha1.AdminNetworkPolicyEgressPeer{Pods: &v1alpha1.NamespacedPod{PodSelector: exists(atDestination)}})
			}
		}
		r.drop = len(r.to) > 0 && to == nil
		r.to = to
	})
}

// closeEmptyPeers replaces rules with a peer of an unknown kind by their meaning: "For "Accept"
// rules, "fail closed" means: "treat the rule as matching no traffic". For "Deny" and "Pass" rules,
// "fail closed" means: "treat the rule as a 'Deny all' rule"."
func closeEmptyPeers(c *Case, _ model.Flow) *Case {
	o := c.Objects
	all := make([]*v1alpha2.ClusterNetworkPolicy, len(o.ClusterPolicies))
	everywhere := &metav1.LabelSelector{}
	for i, p := range o.ClusterPolicies {
		n := p.DeepCopy()
		n.Spec.Ingress, n.Spec.Egress = nil, nil
		for _, r := range p.Spec.Ingress {
			empty := false
			for _, peer := range r.From {
				empty = empty || peer.Namespaces == nil && peer.Pods == nil
			}
			if empty {
				if r.Action == v1alpha2.ClusterNetworkPolicyRuleActionAccept {
					continue
				}
				r = v1alpha2.ClusterNetworkPolicyIngressRule{Action: v1alpha2.ClusterNetworkPolicyRuleActionDeny,
					From: []v1alpha2.ClusterNetworkPolicyIngressPeer{{Namespaces: everywhere}}}
			}
			n.Spec.Ingress = append(n.Spec.Ingress, r)
		}
		for _, r := range p.Spec.Egress {
			empty := false
			for _, peer := range r.To {
				empty = empty || peer.Namespaces == nil && peer.Pods == nil && peer.Nodes == nil && peer.Networks == nil && peer.DomainNames == nil
			}
			if empty {
				if r.Action == v1alpha2.ClusterNetworkPolicyRuleActionAccept {
					continue
				}
				r = v1alpha2.ClusterNetworkPolicyEgressRule{Action: v1alpha2.ClusterNetworkPolicyRuleActionDeny,
					To: []v1alpha2.ClusterNetworkPolicyEgressPeer{{Networks: []v1alpha2.CIDR{"0.0.0.0/0", "::/0"}}}}
			}
			n.Spec.Egress = append(n.Spec.Egress, r)
		}
		all[i] = n
	}
	o.ClusterPolicies = all
	return c.with(o)
}
