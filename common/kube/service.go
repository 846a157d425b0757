// SPDX-License-Identifier: Apache-2.0

package kube

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/isthmus-net/isthmus/common/model"
)

func takeService(l *loader, h header, raw []byte) {
	o, ok := decode[corev1.Service](l, raw)
	if !ok {
		return
	}
	l.inNamespace(&o.ObjectMeta, h.Kind)
	s, errs := convertService(o, l.strict)
	if l.accept(errs) {
		l.services[s.Namespace+"/"+s.Name] = s
	}
}

// convertService converts how clients outside the cluster reach a Service.
func convertService(o *corev1.Service, s strictness) (*model.Service, field.ErrorList) {
	errs := validateMeta(&o.ObjectMeta, true, s)
	service := &model.Service{Namespace: intern(o.Namespace), Name: o.Name,
		KeepsClients: o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal}
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
	service.Pods = pods
	return service, append(errs, more...)
}
