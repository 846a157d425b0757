// SPDX-License-Identifier: Apache-2.0

package kube

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// record holds what is kept of an object of the API server from its arrival on: its name and the noun of
// package model that it was converted to.
type record struct {
	namespace, name string
	// value is a *model.Namespace, *model.Node, *model.Pod, *model.Policy or *model.DenyList. It is nil if
	// the object was deleted or nothing in it is usable.
	value any
	// notes are remarks on the object, for people.
	notes []string
	// bad is true if the object is invalid. value is then the part that can be enforced safely without an
	// earlier valid version.
	bad bool
	// enforced says how value enforces an invalid object.
	enforced string
	// written is the object's status, for kinds that have one.
	written *writtenStatus
}

func (r *record) key() string { return r.namespace + "/" + r.name }

// GetObjectMeta makes a record acceptable to the caches of client-go.
func (r *record) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: r.namespace, Name: r.name}
}

// GetObjectKind makes a record acceptable as an item of a list.
func (r *record) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the record itself: it is never modified.
func (r *record) DeepCopyObject() runtime.Object { return r }

// recordOf builds the record of a converted object.
func recordOf[V any](m metav1.Object, value *V, errs field.ErrorList) *record {
	r := &record{namespace: intern(m.GetNamespace()), name: m.GetName(), bad: len(errs) > 0}
	if value != nil { // a nil pointer in an interface would not be nil
		r.value = value
	}
	for _, e := range remarks(errs) {
		r.notes = append(r.notes, e.String())
	}
	return r
}

// explain adds how an invalid object is enforced. kept is true if its last valid version stays in force.
func (r *record) explain(kept bool) {
	switch {
	case !r.bad:
	case kept:
		r.notes = append(r.notes, "the object is not valid: its last valid version stays in force")
	default:
		r.notes = append(r.notes, "the object is not valid, and no valid version is known: "+r.enforced)
	}
}
