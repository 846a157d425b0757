// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

// serviceCIDRKind is a custom kind here although Kubernetes defines it: API servers serve its version v1 from
// Kubernetes 1.33 on.
func serviceCIDRKind() Kind {
	return Kind{Name: model.KindServiceCIDR, Group: "networking.k8s.io", Versions: []string{"v1"}, Resource: "servicecidrs",
		Read: reads(func(o *serviceCIDR, s Strictness) Result {
			c, errs := convertServiceCIDR(o, s)
			return Result{Value: c, Errs: errs}
		}),
		Put: func(o *model.Objects, v any) { o.ServiceCIDRs = append(o.ServiceCIDRs, v.(*model.ServiceCIDR)) },
		Record: func(o runtime.Object) *Record {
			u, ok := o.(*unstructured.Unstructured)
			if !ok {
				return nil
			}
			var typed serviceCIDR
			raw, err := json.Marshal(u.Object)
			if err == nil {
				err = kjson.UnmarshalCaseSensitivePreserveInts(raw, &typed)
			}
			if err != nil {
				return recordOf[model.ServiceCIDR](u, nil, field.ErrorList{field.Invalid(field.NewPath("spec"), "", err.Error())})
			}
			c, errs := convertServiceCIDR(&typed, Stored)
			r := recordOf(u, c, errs)
			r.Bad = false // its valid ranges count
			return r
		},
		store: mapStore[string, model.ServiceCIDR]{byName, all[string],
			func(s *model.Snapshot) *immutable.Map[string, *model.ServiceCIDR] { return &s.ServiceCIDRs }}}
}

// serviceCIDR is networking.k8s.io/v1 ServiceCIDR, a cluster-scoped kind.
type serviceCIDR struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		// CIDRs are one or two ranges, of different families.
		CIDRs []string `json:"cidrs"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions,omitempty"`
	} `json:"status"`
}

// convertServiceCIDR converts a ServiceCIDR. It omits invalid ranges.
func convertServiceCIDR(o *serviceCIDR, s Strictness) (*model.ServiceCIDR, field.ErrorList) {
	c, errs := &model.ServiceCIDR{Name: o.Name}, validateCustomMeta(&o.ObjectMeta, s)
	path := field.NewPath("spec", "cidrs")
	for i, text := range o.Spec.CIDRs {
		p, more := cidr(text, s, path.Index(i))
		switch {
		case len(more) > 0:
		case p.Bits() == 0:
			more = field.ErrorList{field.Invalid(path.Index(i), text, "contains all addresses: write the range of the Services")}
		case slices.ContainsFunc(c.Prefixes, func(q netip.Prefix) bool { return q.Addr().Is4() == p.Addr().Is4() }):
			more = field.ErrorList{field.Invalid(path.Index(i), text, "is the second range of its family: write another ServiceCIDR")}
		default:
			c.Prefixes = append(c.Prefixes, p)
		}
		errs = append(errs, more...)
	}
	if len(o.Spec.CIDRs) == 0 {
		errs = append(errs, field.Required(path, "name one or two ranges"))
	}
	return c, errs
}
