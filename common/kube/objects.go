// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/isthmus-net/isthmus/common/model"
)

// convertNamespace converts a Namespace.
func convertNamespace(ns *corev1.Namespace, s strictness) (*model.Namespace, field.ErrorList) {
	errs := validateMetaNamed(&ns.ObjectMeta, false, s, validation.ValidateNamespaceName)
	all := model.NewNamespace(intern(ns.Name), ns.Labels)
	all.AllowedIPs = ns.Annotations[model.AnnotationAllowedAddresses]
	return all, errs
}

// convertNode converts a Node. It omits invalid addresses.
func convertNode(n *corev1.Node, s strictness) (*model.Node, field.ErrorList) {
	errs := validateMeta(&n.ObjectMeta, false, s)
	node := &model.Node{Name: intern(n.Name), Labels: model.MakeLabels(n.Labels), OS: nodeOS(n)}
	errs = append(errs, readFabric(n, node)...)
	path := field.NewPath("status", "addresses")
	// Other nodes route to the first address of a family: internal ones come first.
	for _, t := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for i, a := range n.Status.Addresses {
			if a.Type != t {
				continue
			}
			ip, more := parseAddr(a.Address, path.Index(i).Child("address"))
			if errs = append(errs, more...); len(more) == 0 && !slices.Contains(node.Addresses, ip) {
				node.Addresses = append(node.Addresses, ip)
			}
		}
	}
	cidrs, at := n.Spec.PodCIDRs, field.NewPath("spec", "podCIDRs")
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs, at = []string{n.Spec.PodCIDR}, field.NewPath("spec", "podCIDR")
	}
	for i, text := range cidrs {
		p, more := cidr(text, stored, at.Index(i))
		if errs = append(errs, more...); len(more) == 0 {
			node.PodCIDRs = append(node.PodCIDRs, p)
		}
	}
	return node, errs
}

// nodeOS returns the node's operating system: its label, otherwise what its kubelet reports, otherwise "".
func nodeOS(n *corev1.Node) model.OS {
	if os := n.Labels[corev1.LabelOSStable]; os != "" {
		return model.OS(os)
	}
	return model.OS(n.Status.NodeInfo.OperatingSystem)
}

// convertPod converts a Pod. It omits invalid parts.
func convertPod(p *corev1.Pod, s strictness) (*model.Pod, field.ErrorList) {
	errs := validateMeta(&p.ObjectMeta, true, s)
	pod := &model.Pod{
		PodID:       model.PodID{Namespace: intern(p.Namespace), Name: p.Name},
		UID:         string(p.UID),
		Labels:      model.MakeLabels(p.Labels),
		Node:        intern(p.Spec.NodeName),
		HostNetwork: p.Spec.HostNetwork,
		Finished:    p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
		Created:     created(&p.ObjectMeta),
		FixedIPs:    p.Annotations[model.AnnotationAddresses],
	}
	var more field.ErrorList
	pod.IPs, more = podIPs(&p.Status, field.NewPath("status"))
	errs = append(errs, more...)
	pod.Ports, more = namedPorts(&p.Spec, field.NewPath("spec"))
	return pod, append(errs, more...)
}

// podIPs parses a pod's addresses, one per family.
func podIPs(status *corev1.PodStatus, path *field.Path) ([]netip.Addr, field.ErrorList) {
	var texts []string
	at := path.Child("podIPs")
	for _, ip := range status.PodIPs {
		texts = append(texts, ip.IP)
	}
	// If the two disagree podIP counts, as in the API server.
	if status.PodIP != "" && (len(texts) == 0 || texts[0] != status.PodIP) {
		texts, at = []string{status.PodIP}, path.Child("podIP")
	}
	var ips []netip.Addr
	var errs field.ErrorList
	for i, text := range texts {
		ipPath := at
		if len(status.PodIPs) > 0 && len(texts) == len(status.PodIPs) {
			ipPath = at.Index(i).Child("ip")
		}
		ip, more := parseAddr(text, ipPath)
		if len(more) == 0 && slices.ContainsFunc(ips, func(a netip.Addr) bool { return a.Is4() == ip.Is4() }) {
			more = field.ErrorList{field.Invalid(ipPath, text, "a pod has at most one address per family")}
		}
		if errs = append(errs, more...); len(more) == 0 {
			ips = append(ips, ip)
		}
	}
	return ips, errs
}

// namedPorts lists the named ports of all long-running containers: the regular ones and the restartable
// init containers.
func namedPorts(spec *corev1.PodSpec, path *field.Path) ([]model.NamedPort, field.ErrorList) {
	var ports []model.NamedPort
	var errs field.ErrorList
	add := func(c *corev1.Container, path *field.Path) {
		for i := range c.Ports {
			p, more := namedPort(&c.Ports[i], path.Child("ports").Index(i))
			if errs = append(errs, more...); len(more) == 0 && p.Name != "" {
				ports = append(ports, p)
			}
		}
	}
	for i := range spec.Containers {
		add(&spec.Containers[i], path.Child("containers").Index(i))
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c, path.Child("initContainers").Index(i))
		}
	}
	return ports, errs
}

func namedPort(p *corev1.ContainerPort, path *field.Path) (model.NamedPort, field.ErrorList) {
	n := model.NamedPort{Name: intern(p.Name), Protocol: model.TCP}
	var errs, more field.ErrorList
	if p.Protocol != "" {
		n.Protocol, errs = protocol(p.Protocol, path.Child("protocol"))
	}
	n.Port, more = portNumber(p.ContainerPort, path.Child("containerPort"))
	errs = append(errs, more...)
	if p.Name != "" {
		errs = append(errs, portName(p.Name, path.Child("name"))...)
	}
	return n, errs
}
