// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"

	"github.com/isthmus-net/isthmus/common/model"
)

// setDefaults applies the defaults of an API server. The engines expect them and apply none
// themselves.
func (c *Case) setDefaults() {
	for _, p := range c.Pods {
		defaultPod(p)
		if c.Namespaces[p.Namespace] == nil {
			c.Namespaces[p.Namespace] = &corev1.Namespace{}
		}
	}
	for _, p := range c.NetworkPolicies {
		defaultNetworkPolicy(p)
		if c.Namespaces[p.Namespace] == nil {
			c.Namespaces[p.Namespace] = &corev1.Namespace{}
		}
	}
	for name, ns := range c.Namespaces {
		ns.Name = name
		if ns.Labels == nil {
			ns.Labels = make(map[string]string)
		}
		ns.Labels[model.MetadataName] = name
	}
	for _, p := range c.AdminPolicies {
		for i := range p.Spec.Ingress {
			defaultPorts(p.Spec.Ingress[i].Ports)
		}
		for i := range p.Spec.Egress {
			defaultPorts(p.Spec.Egress[i].Ports)
		}
	}
	for _, p := range c.BaselinePolicies {
		for i := range p.Spec.Ingress {
			defaultPorts(p.Spec.Ingress[i].Ports)
		}
		for i := range p.Spec.Egress {
			defaultPorts(p.Spec.Egress[i].Ports)
		}
	}
}

func defaultPod(p *corev1.Pod) {
	if p.Namespace == "" {
		p.Namespace = corev1.NamespaceDefault
	}
	if len(p.Status.PodIPs) == 0 && p.Status.PodIP != "" {
		p.Status.PodIPs = []corev1.PodIP{{IP: p.Status.PodIP}}
	}
	for _, list := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range list {
			for j := range list[i].Ports {
				if list[i].Ports[j].Protocol == "" {
					list[i].Ports[j].Protocol = corev1.ProtocolTCP
				}
			}
		}
	}
}

// defaultNetworkPolicy sets policyTypes as the API does:
//
//	"If this field is not specified, it will default based on the existence of
//	ingress or egress rules; policies that contain an egress section are assumed
//	to affect egress, and all policies (whether or not they contain an ingress
//	section) are assumed to affect ingress."
func defaultNetworkPolicy(p *networkingv1.NetworkPolicy) {
	if p.Namespace == "" {
		p.Namespace = corev1.NamespaceDefault
	}
	s := &p.Spec
	if len(s.PolicyTypes) == 0 {
		s.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(s.Egress) > 0 {
			s.PolicyTypes = append(s.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
	// An empty list means the same as none, and is stored as none.
	if len(s.Ingress) == 0 {
		s.Ingress = nil
	}
	if len(s.Egress) == 0 {
		s.Egress = nil
	}
	tcp := corev1.ProtocolTCP
	each := func(ports []networkingv1.NetworkPolicyPort) {
		for i := range ports {
			if ports[i].Protocol == nil {
				ports[i].Protocol = &tcp
			}
		}
	}
	for i := range s.Ingress {
		each(s.Ingress[i].Ports)
	}
	for i := range s.Egress {
		each(s.Egress[i].Ports)
	}
}

func defaultPorts(ports *[]v1alpha1.AdminNetworkPolicyPort) {
	if ports == nil {
		return
	}
	for i := range *ports {
		p := &(*ports)[i]
		if p.PortNumber != nil && p.PortNumber.Protocol == "" {
			p.PortNumber.Protocol = corev1.ProtocolTCP
		}
		if p.PortRange != nil && p.PortRange.Protocol == "" {
			p.PortRange.Protocol = corev1.ProtocolTCP
		}
	}
}
