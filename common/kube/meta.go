// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"unique"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateMeta checks the metadata that somebody writes: names, labels,
// annotations, owners, finalizers. That of stored objects is taken as it is.
func validateMeta(m *metav1.ObjectMeta, namespaced bool, s strictness) field.ErrorList {
	return validateMetaNamed(m, namespaced, s, validation.NameIsDNSSubdomain)
}

func validateMetaNamed(m *metav1.ObjectMeta, namespaced bool, s strictness, name validation.ValidateNameFunc) field.ErrorList {
	if s == stored {
		return nil
	}
	path := field.NewPath("metadata")
	if m.Name == "" {
		detail := "name the object"
		if m.GenerateName != "" {
			detail = "generateName needs an API server; name the object"
		}
		return field.ErrorList{field.Required(path.Child("name"), detail)}
	}
	copied := *m
	// Server-side bookkeeping, as in the output of kubectl get, is not ours to judge.
	copied.ManagedFields = nil
	return validation.ValidateObjectMeta(&copied, namespaced, name, path)
}

// created is seconds since 1970, 0 if unknown.
func created(m *metav1.ObjectMeta) int64 {
	if m.CreationTimestamp.IsZero() {
		return 0
	}
	return m.CreationTimestamp.Unix()
}

// intern makes equal names share memory: a hundred thousand pods name a few
// hundred nodes and namespaces.
func intern(s string) string { return unique.Make(s).Value() }
