// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/isthmus-net/isthmus/common/model"
)

// editPorts calls edit for every list of ports in copies of the NetworkPolicies. It removes a rule
// if edit leaves none of its ports, because the rule matches nothing.
func (o *Objects) editPorts(edit func([]networkingv1.NetworkPolicyPort) []networkingv1.NetworkPolicyPort) {
	all := make([]*networkingv1.NetworkPolicy, len(o.NetworkPolicies))
	for i, p := range o.NetworkPolicies {
		n := p.DeepCopy()
		n.Spec.Ingress, n.Spec.Egress = nil, nil
		for _, r := range p.DeepCopy().Spec.Ingress {
			if list := edit(r.Ports); len(list) > 0 || len(r.Ports) == 0 {
				r.Ports = list
				n.Spec.Ingress = append(n.Spec.Ingress, r)
			}
		}
		for _, r := range p.DeepCopy().Spec.Egress {
			if list := edit(r.Ports); len(list) > 0 || len(r.Ports) == 0 {
				r.Ports = list
				n.Spec.Egress = append(n.Spec.Egress, r)
			}
		}
		all[i] = n
	}
	o.NetworkPolicies = all
}

// portlessAsRanges replaces "all ports of a protocol" by a range.
func portlessAsRanges(c *Case, _ model.Flow) *Case {
	o := c.Objects
	first, last := intstr.FromInt32(1), int32(65535)
	o.editPorts(func(list []networkingv1.NetworkPolicyPort) []networkingv1.NetworkPolicyPort {
		for i := range list {
			if list[i].Port == nil {
				list[i].Port, list[i].EndPort = &first, &last
			}
		}
		return list
	})
	return c.with(o)
}

// containerPorts lists the ports of a pod's containers and sidecars. Sidecars are init containers
// that always restart.
func containerPorts(p *corev1.Pod) []corev1.ContainerPort {
	var all []corev1.ContainerPort
	if p == nil {
		return nil
	}
	for _, c := range p.Spec.Containers {
		all = append(all, c.Ports...)
	}
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			all = append(all, c.Ports...)
		}
	}
	return all
}

// resolveNames replaces every port name by the port numbers of the destination.
func resolveNames(c *Case, f model.Flow) *Case {
	o := c.Objects
	ports := containerPorts(c.Owner(f.Dst))
	o.editPorts(func(list []networkingv1.NetworkPolicyPort) []networkingv1.NetworkPolicyPort {
		var out []networkingv1.NetworkPolicyPort
		for _, p := range list {
			if p.Port == nil || p.Port.Type == intstr.Int {
				out = append(out, p)
				continue
			}
			for _, at := range ports {
				if at.Name == p.Port.StrVal && at.Protocol == *p.Protocol {
					number := intstr.FromInt32(at.ContainerPort)
					out = append(out, networkingv1.NetworkPolicyPort{Protocol: p.Protocol, Port: &number})
				}
			}
		}
		return out
	})
	return resolveAdminNames(c.with(o), f)
}

// resolveEveryName is resolveNames for all three APIs.
func resolveEveryName(c *Case, f model.Flow) *Case {
	o := resolveNames(c, f).Objects
	ports := containerPorts(c.Owner(f.Dst))
	edit := func(list []v1alpha2.ClusterNetworkPolicyProtocol) []v1alpha2.ClusterNetworkPolicyProtocol {
		var out []v1alpha2.ClusterNetworkPolicyProtocol
		for _, p := range list {
			if p.DestinationNamedPort == "" {
				out = append(out, p)
				continue
			}
			for _, at := range ports {
				if at.Name == p.DestinationNamedPort {
					out = append(out, numbered(at))
				}
			}
		}
		return out
	}
	all := make([]*v1alpha2.ClusterNetworkPolicy, len(o.ClusterPolicies))
	for i, p := range o.ClusterPolicies {
		n := p.DeepCopy()
		n.Spec.Ingress, n.Spec.Egress = nil, nil
		for _, r := range p.Spec.Ingress {
			if list := edit(r.Protocols); len(list) > 0 || r.Protocols == nil {
				r.Protocols = list
				n.Spec.Ingress = append(n.Spec.Ingress, r)
			}
		}
		for _, r := range p.Spec.Egress {
			if list := edit(r.Protocols); len(list) > 0 || r.Protocols == nil {
				r.Protocols = list
				n.Spec.Egress = append(n.Spec.Egress, r)
			}
		}
		all[i] = n
	}
	o.ClusterPolicies = all
	return c.with(o)
}

func numbered(p corev1.ContainerPort) v1alpha2.ClusterNetworkPolicyProtocol {
	port := &v1alpha2.Port{Number: p.ContainerPort}
	switch p.Protocol {
	case corev1.ProtocolUDP:
		return v1alpha2.ClusterNetworkPolicyProtocol{UDP: &v1alpha2.ClusterNetworkPolicyProtocolUDP{DestinationPort: port}}
	case corev1.ProtocolSCTP:
		return v1alpha2.ClusterNetworkPolicyProtocol{SCTP: &v1alpha2.ClusterNetworkPolicyProtocolSCTP{DestinationPort: port}}
	}
	return v1alpha2.ClusterNetworkPolicyProtocol{TCP: &v1alpha2.ClusterNetworkPolicyProtocolTCP{DestinationPort: port}}
}

// resolveAdminNames is resolveNames for v1alpha1.
func resolveAdminNames(c *Case, f model.Flow) *Case {
	o := c.Objects
	ports := containerPorts(c.Owner(f.Dst))
	o.editAdmin(func(r *adminRule) {
		if r.ports == nil {
			return
		}
		out := []v1alpha1.AdminNetworkPolicyPort{}
		for _, p := range *r.ports {
			if p.NamedPort == nil {
				out = append(out, p)
				continue
			}
			for _, at := range ports {
				if at.Name == *p.NamedPort {
					out = append(out, v1alpha1.AdminNetworkPolicyPort{PortNumber: &v1alpha1.Port{Protocol: at.Protocol, Port: at.ContainerPort}})
				}
			}
		}
		r.ports, r.drop = &out, len(out) == 0
	})
	return c.with(o)
}
