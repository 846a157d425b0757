// SPDX-License-Identifier: Apache-2.0

package kube

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/isthmus-net/isthmus/common/model"
)

func validateLabels(labels map[string]string, path *field.Path) field.ErrorList {
	return metavalidation.ValidateLabels(labels, path)
}

// nodeSelector converts the nodeSelector of a pod.
func nodeSelector(labels map[string]string, path *field.Path) (model.Selector, field.ErrorList) {
	if errs := validateLabels(labels, path); len(errs) > 0 {
		return model.Selector{}, errs
	}
	s, _ := selector(&metav1.LabelSelector{MatchLabels: labels}, stored, path)
	return s, nil
}

// requiredAffinity converts the node labels that a pod requires by affinity: one of the selectors must
// match. It ignores terms that compare numbers or fields. A pod may therefore be expected on more nodes
// than will have it.
func requiredAffinity(a *corev1.Affinity, path *field.Path) ([]model.Selector, field.ErrorList) {
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil, nil
	}
	var terms []model.Selector
	var errs field.ErrorList
	for i, t := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		if len(t.MatchExpressions) == 0 && len(t.MatchFields) == 0 {
			continue // "A null or empty node selector term matches no objects."
		}
		ls := &metav1.LabelSelector{}
		for _, e := range t.MatchExpressions {
			if e.Operator == corev1.NodeSelectorOpGt || e.Operator == corev1.NodeSelectorOpLt {
				continue
			}
			ls.MatchExpressions = append(ls.MatchExpressions, metav1.LabelSelectorRequirement{
				Key: e.Key, Operator: metav1.LabelSelectorOperator(e.Operator), Values: e.Values})
		}
		s, more := selector(ls, stored, path.Index(i))
		errs = append(errs, more...)
		terms = append(terms, s)
	}
	return terms, errs
}
