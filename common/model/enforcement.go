// SPDX-License-Identifier: Apache-2.0

package model

import "fmt"

// AnnotationEnforcement is the namespace annotation that says whether policy is enforced on the pods of the
// namespace, or only observed. Nodes where Isthmus makes the interfaces ignore it: they always enforce.
const AnnotationEnforcement = "isthmus.dev/enforcement"

// The values of AnnotationEnforcement.
const (
	Enforce = "enforce"
	Observe = "observe"
)

// Observation says which pods of a node are observed: their packets pass, and flow events report what policy
// would drop.
type Observation uint8

// The values of Observation.
const (
	// ObserveNone: policy is enforced on every pod.
	ObserveNone Observation = iota
	// ObserveSome: policy is enforced, except on pods of namespaces that ask for observation.
	ObserveSome
	// ObserveAll: pods are observed, except those of namespaces that ask for enforcement.
	ObserveAll
	// ObserveRefused: policy is enforced on every pod, because the data path cannot report what policy would drop.
	// Namespaces that ask for observation are reported.
	ObserveRefused
)

// EnforcementProblem says what is wrong with a value of AnnotationEnforcement; "" if nothing is.
func EnforcementProblem(value string) string {
	switch value {
	case "", Enforce, Observe:
		return ""
	}
	if len(value) > 60 {
		value = value[:60] + "..."
	}
	return fmt.Sprintf("%q is neither %s nor %s: policy is enforced on the pods of the namespace; correct or remove the annotation", value, Enforce, Observe)
}

// Problem says why a value of AnnotationEnforcement has not the effect on a node that it asks for; "" if it has. A node
// that never observes ignores the annotation.
func (o Observation) Problem(value string) string {
	switch {
	case o == ObserveNone:
		return ""
	case o == ObserveRefused && value == Observe:
		return "this node cannot report what policy would drop: policy is enforced on the pods of the namespace here; schedule them on Linux nodes, or remove the annotation"
	}
	return EnforcementProblem(value)
}

// Observes reports whether the pods of a namespace are observed. ns is nil if the namespace is not known. A value
// of the annotation that does not exist counts as Enforce.
func (o Observation) Observes(ns *Namespace) bool {
	asked := ""
	if ns != nil {
		asked = ns.Enforcement
	}
	switch o {
	case ObserveSome:
		return asked == Observe
	case ObserveAll:
		return asked == "" || asked == Observe
	}
	return false
}
