// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

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

func recordNamespace(o runtime.Object) *record {
	ns, ok := o.(*corev1.Namespace)
	if !ok {
		return nil
	}
	value, errs := convertNamespace(ns, stored)
	return recordOf(ns, value, errs)
}

func recordNode(o runtime.Object) *record {
	n, ok := o.(*corev1.Node)
	if !ok {
		return nil
	}
	value, errs := convertNode(n, stored)
	r := recordOf(n, value, errs)
	r.bad = false // the valid part counts
	return r
}

func recordPod(o runtime.Object) *record {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return nil
	}
	value, errs := convertPod(p, stored)
	r := recordOf(p, value, errs)
	r.bad = false // the valid part counts
	return r
}

func recordNetworkPolicy(o runtime.Object) *record {
	np, ok := o.(*networkingv1.NetworkPolicy)
	if !ok {
		return nil
	}
	defaultNetworkPolicy(np)
	value, errs := convertNetworkPolicy(np, stored)
	r := recordOf(np, value, errs)
	if r.bad {
		r.enforced = enforcedNetworkPolicy(np, value)
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

// recordClusterPolicy builds records of a kind of cluster-wide policy. The objects arrive untyped, so that
// an object that does not fit the type hides no other.
func recordClusterPolicy[T any](convert func(*T, strictness) converted) func(runtime.Object) *record {
	return func(o runtime.Object) *record {
		u, ok := o.(*unstructured.Unstructured)
		if !ok {
			return nil
		}
		raw, err := json.Marshal(u.Object)
		if err != nil {
			return nil
		}
		typed, lost := salvage[T](raw)
		c := convert(typed, stored)
		c.lose(lost)
		r := recordOf(u, c.policy, c.errs)
		r.enforced, r.written = c.enforced, statusOf(u)
		for _, w := range c.warnings {
			r.notes = append(r.notes, w.String())
		}
		return r
	}
}
