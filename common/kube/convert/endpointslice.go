// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/isthmus-net/isthmus/common/model"
)

// endpointSliceKind is for queries only: nodes do not need it.
func endpointSliceKind() Kind {
	return Kind{Name: "EndpointSlice", Group: "discovery.k8s.io", Versions: []string{"v1"}, Namespaced: true,
		Read: reads(func(o *discoveryv1.EndpointSlice, s Strictness) Result {
			slice, errs := convertEndpointSlice(o, s)
			return Result{Value: slice, Errs: errs}
		}),
		Put: func(o *model.Objects, v any) { o.EndpointSlices = append(o.EndpointSlices, v.(*model.EndpointSlice)) }}
}

// convertEndpointSlice converts the endpoints to which Services send new connections. EndpointConditions says
// of ready and serving: "A nil value should be interpreted as true", and of terminating: "as false".
func convertEndpointSlice(o *discoveryv1.EndpointSlice, s Strictness) (*model.EndpointSlice, field.ErrorList) {
	errs := validateMeta(&o.ObjectMeta, true, s)
	slice := &model.EndpointSlice{Namespace: intern(o.Namespace), Name: o.Name, Service: o.Labels[discoveryv1.LabelServiceName]}
	if o.AddressType == discoveryv1.AddressTypeFQDN {
		return slice, errs // kube-proxy ignores it too
	}
	for i, p := range o.Ports {
		if p.Port == nil {
			continue // all ports: no Service has such a slice
		}
		port := model.NamedPort{Protocol: model.TCP}
		if p.Name != nil {
			port.Name = *p.Name
		}
		var wrong *field.Error
		at := field.NewPath("ports").Index(i)
		if p.Protocol != nil {
			port.Protocol, wrong = servicePortProtocol(*p.Protocol, at.Child("protocol"))
		}
		if wrong != nil {
			errs = append(errs, wrong)
		}
		if port.Port, wrong = servicePortNumber(*p.Port, at.Child("port")); wrong != nil {
			errs = append(errs, wrong)
		}
		slice.Ports = append(slice.Ports, port)
	}
	for i, e := range o.Endpoints {
		to := &slice.Addresses
		if is := e.Conditions; is.Ready != nil && !*is.Ready {
			if is.Terminating == nil || !*is.Terminating || is.Serving != nil && !*is.Serving {
				continue
			}
			to = &slice.Draining
		}
		for j, text := range e.Addresses {
			a, err := netip.ParseAddr(text)
			if err != nil {
				errs = append(errs, field.Invalid(field.NewPath("endpoints").Index(i).Child("addresses").Index(j), text, "must be an IP address"))
				continue
			}
			*to = append(*to, a.Unmap())
		}
	}
	return slice, errs
}

func servicePortProtocol(p corev1.Protocol, path *field.Path) (model.Protocol, *field.Error) {
	switch p {
	case "", corev1.ProtocolTCP:
		return model.TCP, nil
	case corev1.ProtocolUDP:
		return model.UDP, nil
	case corev1.ProtocolSCTP:
		return model.SCTP, nil
	}
	return 0, field.NotSupported(path, p, []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP})
}

func servicePortNumber(n int32, path *field.Path) (uint16, *field.Error) {
	if n < 1 || n > 65535 {
		return 0, field.Invalid(path, n, "must be between 1 and 65535")
	}
	return uint16(n), nil
}
