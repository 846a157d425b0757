// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/isthmus-net/isthmus/common/model"
)

// serviceKind is for queries and checks only: nodes do not need it.
func serviceKind() Kind {
	return Kind{Name: "Service", Versions: []string{"v1"}, Namespaced: true,
		Read: reads(func(o *corev1.Service, s Strictness) Result {
			service, errs := convertService(o, s)
			return Result{Value: service, Errs: errs}
		}),
		Put: func(o *model.Objects, v any) { o.Services = append(o.Services, v.(*model.Service)) }}
}

// convertService converts how clients outside the cluster reach a Service.
func convertService(o *corev1.Service, s Strictness) (*model.Service, field.ErrorList) {
	errs := validateMeta(&o.ObjectMeta, true, s)
	service := &model.Service{Namespace: intern(o.Namespace), Name: o.Name,
		KeepsClients: o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal}
	var wrong field.ErrorList
	if local := o.Spec.InternalTrafficPolicy; local != nil && *local == corev1.ServiceInternalTrafficPolicyLocal {
		service.OwnNode = true
	}
	service.Addresses, service.ClusterIPs, service.ExternalIPs, wrong = serviceAddresses(o)
	errs = append(errs, wrong...)
	for i, text := range o.Spec.LoadBalancerSourceRanges {
		// "Note: due to a historical accident around transition from the annotation value, these values are allowed to be space-padded"
		p, wrong := cidr(strings.TrimSpace(text), s, field.NewPath("spec", "loadBalancerSourceRanges").Index(i))
		if errs = append(errs, wrong...); len(wrong) == 0 {
			service.Sources = append(service.Sources, p)
		}
	}
	service.Ports, wrong = servicePorts(o)
	errs = append(errs, wrong...)
	service.Headless = o.Spec.ClusterIP == corev1.ClusterIPNone
	if families := o.Spec.IPFamilies; len(families) > 0 {
		service.NoIPv4, service.NoIPv6 = !slices.Contains(families, corev1.IPv4Protocol), !slices.Contains(families, corev1.IPv6Protocol)
	}
	if o.Spec.Type == corev1.ServiceTypeExternalName {
		service.ExternalName = o.Spec.ExternalName
	}
	switch {
	case o.Spec.Type == corev1.ServiceTypeNodePort, o.Spec.Type == corev1.ServiceTypeLoadBalancer:
		service.External = string(o.Spec.Type)
	case len(o.Spec.ExternalIPs) > 0:
		service.External = "externalIPs"
	}
	if len(o.Spec.Selector) == 0 {
		service.External = "" // its endpoints are unknown
		return service, errs
	}
	pods, more := selector(&metav1.LabelSelector{MatchLabels: o.Spec.Selector}, s, field.NewPath("spec", "selector"))
	service.Pods, service.Selects = pods, true
	return service, append(errs, more...)
}

// servicePorts converts the ports. ServicePort.targetPort: "If this is not specified, the value of the 'port'
// field is used (an identity map)".
func servicePorts(o *corev1.Service) (all []model.ServicePort, errs field.ErrorList) {
	for i, p := range o.Spec.Ports {
		at := field.NewPath("spec", "ports").Index(i)
		port := model.ServicePort{Name: p.Name}
		var wrong *field.Error
		if port.Protocol, wrong = servicePortProtocol(p.Protocol, at.Child("protocol")); wrong != nil {
			errs = append(errs, wrong)
		}
		if port.Port, wrong = servicePortNumber(p.Port, at.Child("port")); wrong != nil {
			errs = append(errs, wrong)
		}
		if p.NodePort != 0 {
			if port.Node, wrong = servicePortNumber(p.NodePort, at.Child("nodePort")); wrong != nil {
				errs = append(errs, wrong)
			}
		}
		switch {
		case p.TargetPort.Type == intstr.String && p.TargetPort.StrVal != "":
			port.TargetName = p.TargetPort.StrVal
		case p.TargetPort.Type == intstr.Int && p.TargetPort.IntVal != 0:
			if port.Target, wrong = servicePortNumber(p.TargetPort.IntVal, at.Child("targetPort")); wrong != nil {
				errs = append(errs, wrong)
			}
		default:
			port.Target = port.Port
		}
		all = append(all, port)
	}
	return all, errs
}

// serviceAddresses returns the addresses to which clients send, first the cluster IPs, then the external IPs, and how many these are.
func serviceAddresses(o *corev1.Service) (all []netip.Addr, cluster, external int, errs field.ErrorList) {
	add := func(text string, path *field.Path) {
		if text == "" || text == corev1.ClusterIPNone {
			return
		}
		a, err := netip.ParseAddr(text)
		if err != nil {
			errs = append(errs, field.Invalid(path, text, "must be an IP address"))
			return
		}
		if a = a.Unmap(); !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	spec := field.NewPath("spec")
	add(o.Spec.ClusterIP, spec.Child("clusterIP"))
	for i, text := range o.Spec.ClusterIPs {
		add(text, spec.Child("clusterIPs").Index(i))
	}
	cluster = len(all)
	for i, text := range o.Spec.ExternalIPs {
		add(text, spec.Child("externalIPs").Index(i))
	}
	external = len(all) - cluster
	for i, ingress := range o.Status.LoadBalancer.Ingress {
		add(ingress.IP, field.NewPath("status", "loadBalancer", "ingress").Index(i).Child("ip"))
	}
	return all, cluster, external, errs
}
