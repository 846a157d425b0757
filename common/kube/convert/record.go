// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/isthmus-net/isthmus/common/report"
)

// Record holds what is kept of an object of the API server from its arrival on: its name and the noun of
// package model that it was converted to.
type Record struct {
	Namespace, Name string
	// UID distinguishes an object from its successor of the same name. It is "" of a deleted one.
	UID string
	// Value is a *model.Namespace, *model.Node, *model.Pod, *model.Policy or *model.DenyList. It is nil if
	// the object was deleted or nothing in it is usable.
	Value any
	// Notes are remarks on the object, for people.
	Notes []string
	// Bad is true if the object is invalid. Value is then the part that can be enforced safely without an
	// earlier valid version.
	Bad bool
	// enforced describes how Value enforces an invalid object.
	enforced string
	// Status is the object's status, for kinds that have one.
	Status *Status
}

// Key returns NAMESPACE/NAME, with an empty namespace for a cluster-scoped object.
func (r *Record) Key() string { return r.Namespace + "/" + r.Name }

// GetObjectMeta makes a record acceptable to the caches of client-go.
func (r *Record) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Name}
}

// GetObjectKind makes a record acceptable as an item of a list.
func (r *Record) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the record itself: it is never modified.
func (r *Record) DeepCopyObject() runtime.Object { return r }

// recordOf builds the record of a converted object.
func recordOf[V any](m metav1.Object, value *V, errs field.ErrorList) *Record {
	r := &Record{Namespace: intern(m.GetNamespace()), Name: m.GetName(), UID: string(m.GetUID()), Bad: len(errs) > 0}
	if value != nil { // a nil pointer in an interface would not be nil
		r.Value = value
	}
	for _, e := range Remarks(errs) {
		r.Notes = append(r.Notes, e.String())
	}
	return r
}

// records returns the Record function of a kind with a type of its own.
func records[T, V any, P typedObject[T]](convert func(*T, Strictness) (*V, field.ErrorList)) func(runtime.Object) *Record {
	return func(o runtime.Object) *Record {
		typed, ok := o.(P)
		if !ok {
			return nil
		}
		value, errs := convert(typed, Stored)
		return recordOf(typed, value, errs)
	}
}

// recordsValidParts is records for a kind whose objects are used without their invalid parts, so that none of
// them is invalid: the other addresses of a pod, for example, still count.
func recordsValidParts[T, V any, P typedObject[T]](convert func(*T, Strictness) (*V, field.ErrorList)) func(runtime.Object) *Record {
	record := records[T, V, P](convert)
	return func(o runtime.Object) *Record {
		r := record(o)
		if r != nil {
			r.Bad = false
		}
		return r
	}
}

// typedObject is a pointer to a T that clients know as a type of its own.
type typedObject[T any] interface {
	apiObject[T]
	runtime.Object
}

// Explain adds how an invalid object is enforced. kept is true if its last valid version stays in force.
func (r *Record) Explain(kept bool) {
	switch {
	case !r.Bad:
	case kept:
		r.Notes = append(r.Notes, "the object is not valid: its last valid version stays in force")
	default:
		r.Notes = append(r.Notes, "the object is not valid, and no valid version is known: "+r.enforced)
	}
}

// Status is the stored part of the status of a cluster-wide policy or a deny list: the conditions of Isthmus, by
// type.
type Status struct {
	Generation int64
	Conditions map[string]*report.Written
}

// statusOf reads the status of an untyped object. It skips entries that do not have the shape of a
// condition: other components wrote them.
func statusOf(u *unstructured.Unstructured) *Status {
	s := &Status{Generation: u.GetGeneration()}
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, item := range list {
		c, ok := item.(map[string]any)
		if !ok {
			continue
		}
		text := func(key string) string {
			value, _ := c[key].(string)
			return value
		}
		if !strings.HasPrefix(text("type"), report.ConditionPrefix) {
			continue
		}
		w := &report.Written{Status: text("status"), Reason: text("reason"), Message: text("message")}
		w.Generation, _ = c["observedGeneration"].(int64)
		w.Since, _ = time.Parse(time.RFC3339, text("lastTransitionTime"))
		if s.Conditions == nil {
			s.Conditions = make(map[string]*report.Written)
		}
		s.Conditions[text("type")] = w
	}
	return s
}
