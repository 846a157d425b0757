// SPDX-License-Identifier: Apache-2.0

package convert

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

func namespaceKind() Kind {
	return Kind{Name: "Namespace", Versions: []string{"v1"}, Resource: "namespaces", Typed: &corev1.Namespace{}, AddToScheme: corev1.AddToScheme,
		Read: reads(func(o *corev1.Namespace, s Strictness) Result {
			ns, errs := convertNamespace(o, s)
			return Result{Value: ns, Errs: errs}
		}),
		Put:    func(o *model.Objects, v any) { o.Namespaces = append(o.Namespaces, v.(*model.Namespace)) },
		Record: records(convertNamespace),
		store: mapStore[string, model.Namespace]{byName, all[string],
			func(s *model.Snapshot) *immutable.Map[string, *model.Namespace] { return &s.Namespaces }}}
}

// convertNamespace converts a Namespace.
func convertNamespace(ns *corev1.Namespace, s Strictness) (*model.Namespace, field.ErrorList) {
	errs := validateMetaNamed(&ns.ObjectMeta, false, s, validation.ValidateNamespaceName)
	all := model.NewNamespace(intern(ns.Name), ns.Labels)
	all.AllowedIPs = ns.Annotations[model.AnnotationAllowedAddresses]
	all.Enforcement = ns.Annotations[model.AnnotationEnforcement]
	return all, errs
}
