// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/isthmus-net/isthmus/common/model"
)

// salvaged lists the parts of a stored object that were dropped, because they lack the type that this
// version knows.
type salvaged struct {
	errs field.ErrorList
	// parts are the paths of the dropped parts.
	parts []string
}

// salvage decodes a stored cluster-wide policy. If its API differs from the known one, it decodes the
// fitting parts: dropping a whole policy would open the traffic that it denies. It drops other parts in
// such a manner that conversion fails closed. A rule keeps at most its action, the subject becomes empty,
// and a priority becomes unknown.
func salvage[T any](raw []byte) (*T, salvaged) {
	var typed T
	err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &typed)
	if err == nil {
		return &typed, salvaged{}
	}
	lost := salvaged{errs: misfits(raw, reflect.TypeFor[T]())}
	if len(lost.errs) == 0 {
		lost.errs = field.ErrorList{field.InternalError(field.NewPath(wholeDocument), err)}
	}
	var object map[string]any
	if kjson.UnmarshalCaseSensitivePreserveInts(raw, &object) == nil {
		for _, e := range lost.errs {
			lost.leaveOut(object, e.Field)
		}
		var rest T
		if clean, err := json.Marshal(object); err == nil && kjson.UnmarshalCaseSensitivePreserveInts(clean, &rest) == nil {
			return &rest, lost
		}
	}
	var nothing T
	lost.parts = append(lost.parts, "spec")
	clean, _ := json.Marshal(map[string]any{"spec": unknownSpec()})
	if err := kjson.UnmarshalCaseSensitivePreserveInts(clean, &nothing); err != nil {
		lost.errs = append(lost.errs, field.InternalError(field.NewPath("spec"), err))
	}
	return &nothing, lost
}

// unknownSpec is the spec of a policy of which nothing is known: conversion makes it deny everything.
func unknownSpec() map[string]any {
	rule := []any{map[string]any{}}
	return map[string]any{"priority": -1, "ingress": rule, "egress": rule}
}

// leaveOut replaces the part of an object that contains the field.
func (l *salvaged) leaveOut(object map[string]any, at string) {
	spec, _ := object["spec"].(map[string]any)
	name, _, _ := strings.Cut(strings.TrimPrefix(at, "spec."), ".")
	list, index, isElement := strings.Cut(strings.TrimSuffix(name, "]"), "[")
	switch {
	case strings.HasPrefix(at, "metadata"):
		meta, _ := object["metadata"].(map[string]any)
		object["metadata"] = only(meta, "name", "uid")
	case !strings.HasPrefix(at, "spec.") || spec == nil:
		if delete(object, strings.Split(at, ".")[0]); at == "spec" || spec == nil {
			object["spec"] = unknownSpec()
			l.parts = append(l.parts, "spec")
		}
	case name == "subject":
		spec["subject"] = map[string]any{}
		l.parts = append(l.parts, "spec.subject")
	case name == "priority" || name == "tier":
		spec["priority"] = -1
		if name == "tier" {
			delete(spec, "tier")
		}
		l.parts = append(l.parts, "spec."+name)
	case list == model.Ingress.String() || list == model.Egress.String():
		rules, ok := spec[list].([]any)
		n := 0
		if _, err := fmt.Sscan(index, &n); !ok || !isElement || err != nil || n >= len(rules) {
			spec[list] = []any{map[string]any{}}
			l.parts = append(l.parts, "spec."+list)
			return
		}
		rule, _ := rules[n].(map[string]any)
		rules[n] = only(rule, "name", "action")
		l.parts = append(l.parts, fmt.Sprintf("spec.%s[%d]", list, n))
	default:
		delete(spec, name)
	}
}

// only returns the string members of an object with these names.
func only(object map[string]any, names ...string) map[string]any {
	kept := make(map[string]any)
	for _, name := range names {
		if text, ok := object[name].(string); ok {
			kept[name] = text
		}
	}
	return kept
}

// lose replaces the errors about dropped parts by the original problems.
func (c *converted) lose(lost salvaged) {
	errs := lost.errs
	for _, e := range c.errs {
		if !lost.has(e.Field) {
			errs = append(errs, e)
		}
	}
	c.errs = errs
}

// has reports whether a field is in a dropped part.
func (l salvaged) has(at string) bool {
	for _, part := range l.parts {
		if rest, ok := strings.CutPrefix(at, part); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return true
		}
	}
	return false
}
