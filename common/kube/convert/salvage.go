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
// version knows, or have fields that it does not know.
type salvaged struct {
	errs field.ErrorList
	// parts are the paths of the dropped parts.
	parts []string
	// unknown are the unknown fields of rules. Such a rule fails closed and is valid.
	unknown []unknownField
}

// salvage decodes a stored cluster-wide policy. If its API differs from the known one, it decodes the
// fitting parts: dropping a whole policy would open the traffic that it denies. It drops other parts in
// such a manner that conversion fails closed. A rule keeps at most its action, the subject becomes empty,
// and a priority becomes unknown. Unknown fields of the spec may restrict the part that contains them.
func salvage[T any](raw []byte) (*T, salvaged) {
	var typed T
	var lost salvaged
	var object map[string]any
	err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &typed)
	if err != nil {
		if lost.errs = misfits(raw, reflect.TypeFor[T]()); len(lost.errs) == 0 {
			lost.errs = field.ErrorList{field.InternalError(field.NewPath(wholeDocument), err)}
		}
	}
	if kjson.UnmarshalCaseSensitivePreserveInts(raw, &object) == nil {
		for _, e := range lost.errs {
			lost.leaveOut(object, e.Field)
		}
		if lost.leaveOutUnknown(object, reflect.TypeFor[T]()); err == nil && len(lost.parts) == 0 {
			return &typed, salvaged{}
		}
		var rest T
		if clean, err := json.Marshal(object); err == nil && kjson.UnmarshalCaseSensitivePreserveInts(clean, &rest) == nil {
			return &rest, lost
		}
	}
	var nothing T
	lost.parts, lost.unknown = append(lost.parts, "spec"), nil
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
	c.warnings = append(c.warnings, lost.warnings(c.policy)...)
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

// unknownField is a field of a rule that this version does not know.
type unknownField struct {
	path      string
	direction model.Direction
	rule      int
}

const unknownFieldDetail = "this version does not know the field"

// leaveOutUnknown replaces the parts of a stored policy that have fields that its type t lacks. Such a field
// may restrict what the other fields of the part mean. The first one of each part is reported.
func (l *salvaged) leaveOutUnknown(object map[string]any, t reflect.Type) {
	spec, _ := object["spec"].(map[string]any)
	specField, _ := t.FieldByName("Spec")
	path := field.NewPath("spec")
	for _, name := range keys(spec) {
		known, ok := fieldType(specField.Type, name)
		switch {
		case !ok: // it may decide where the policy applies
			if !l.has("spec.priority") {
				l.errs = append(l.errs, field.Forbidden(path.Child(name), unknownFieldDetail))
				l.leaveOut(object, "spec.priority")
			}
		case name == model.Ingress.String():
			l.leaveOutRules(spec, model.Ingress, known, path)
		case name == model.Egress.String():
			l.leaveOutRules(spec, model.Egress, known, path)
		default:
			if at := firstUnknown(spec[name], known, path.Child(name)); at != nil {
				l.errs = append(l.errs, field.Forbidden(at, unknownFieldDetail))
				l.leaveOut(object, "spec."+name)
			}
		}
	}
}

// leaveOutRules replaces the rules with unknown fields. list is the type of the list of rules.
func (l *salvaged) leaveOutRules(spec map[string]any, d model.Direction, list reflect.Type, path *field.Path) {
	rules, _ := spec[d.String()].([]any)
	for i := range rules {
		at := path.Child(d.String()).Index(i)
		if unknown := firstUnknown(rules[i], list.Elem(), at); unknown != nil {
			rule, _ := rules[i].(map[string]any)
			rules[i] = only(rule, "name", "action")
			l.parts = append(l.parts, at.String())
			l.unknown = append(l.unknown, unknownField{unknown.String(), d, i})
		}
	}
}

// warnings report the unknown fields of rules.
func (l *salvaged) warnings(p *model.Policy) (all []Remark) {
	for _, u := range l.unknown {
		all = append(all, Remark{OneLine(Bounded(u.path, 2*MaxValue)), unknownFieldDetail + "; " + failsClosed(p.Rules[u.direction][u.rule].Action)})
	}
	return all
}

// firstUnknown returns the path of a field in a value that its type lacks, or nil.
func firstUnknown(v any, t reflect.Type, path *field.Path) *field.Path {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil
	}
	switch v := v.(type) {
	case []any:
		for i, e := range v {
			if at := firstUnknown(e, t.Elem(), path.Index(i)); at != nil {
				return at
			}
		}
	case map[string]any:
		for _, name := range keys(v) {
			at := path.Child(name)
			inner, known := fieldType(t, name)
			if !known {
				return at
			}
			if at = firstUnknown(v[name], inner, at); at != nil {
				return at
			}
		}
	}
	return nil
}

// fieldType returns the type of a member of a JSON object that decodes to t.
func fieldType(t reflect.Type, name string) (reflect.Type, bool) {
	if t.Kind() == reflect.Map {
		return t.Elem(), true
	}
	for i := range t.NumField() {
		f := t.Field(i)
		own, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && (own == "" || strings.Contains(options, "inline")) {
			if inner, ok := fieldType(f.Type, name); ok {
				return inner, true
			}
		}
		if own == name && own != "-" {
			return f.Type, true
		}
	}
	return nil, false
}
