// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"slices"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateMeta checks the metadata of a newly written object of a built-in kind: names, labels,
// annotations, owners, finalizers. It accepts metadata of stored objects as it is.
func validateMeta(m *metav1.ObjectMeta, namespaced bool, s Strictness) field.ErrorList {
	return validateMetaNamed(m, namespaced, s, validation.NameIsDNSSubdomain)
}

// validateMetaNamed is validateMeta for kinds with other names.
func validateMetaNamed(m *metav1.ObjectMeta, namespaced bool, s Strictness, name validation.ValidateNameFunc) field.ErrorList {
	errs := validateAnyMeta(m, namespaced, s, name)
	if s == Stored || m.Name == "" {
		return errs
	}
	// The API server requires this of the finalizers of built-in kinds only.
	for i, f := range m.Finalizers {
		if !strings.Contains(f, "/") && !slices.Contains(standardFinalizers, f) {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "finalizers").Index(i), f,
				"name is neither a standard finalizer name nor is it fully qualified: write it as example.com/"+Bounded(f, MaxValue)))
		}
	}
	return errs
}

// standardFinalizers need no domain.
var standardFinalizers = []string{string(corev1.FinalizerKubernetes), metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents}

// validateCustomMeta is validateMeta for cluster-scoped objects of custom kinds.
func validateCustomMeta(m *metav1.ObjectMeta, s Strictness) field.ErrorList {
	return validateAnyMeta(m, false, s, validation.NameIsDNSSubdomain)
}

func validateAnyMeta(m *metav1.ObjectMeta, namespaced bool, s Strictness, name validation.ValidateNameFunc) field.ErrorList {
	if s == Stored {
		return nil
	}
	path := field.NewPath("metadata")
	if m.Name == "" {
		return field.ErrorList{field.Required(path.Child("name"), "name the object")}
	}
	copied := *m
	// Server-side bookkeeping, as in the output of kubectl get, is not validated.
	copied.ManagedFields = nil
	return validation.ValidateObjectMeta(&copied, namespaced, name, path)
}

// created returns seconds since 1970, 0 if unknown.
func created(m *metav1.ObjectMeta) int64 {
	if m.CreationTimestamp.IsZero() {
		return 0
	}
	return m.CreationTimestamp.Unix()
}

// intern makes equal names share memory: a hundred thousand pods name a few hundred nodes and namespaces.
func intern(s string) string { return unique.Make(s).Value() }
