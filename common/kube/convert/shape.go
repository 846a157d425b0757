// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// misfits finds the values that do not have the type of the API. It runs only after decoding has failed:
// the decoder does not report which element of a list was wrong.
func misfits(raw []byte, t reflect.Type) field.ErrorList {
	var v any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &v); err != nil {
		return nil
	}
	return misfit(v, t, nil)
}

func misfit(v any, t reflect.Type, path *field.Path) field.ErrorList {
	if v == nil {
		return nil // "null" leaves a field unchanged
	}
	if t.Kind() == reflect.Pointer {
		return misfit(v, t.Elem(), path)
	}
	if t == reflect.TypeFor[intstr.IntOrString]() {
		if _, ok := v.(string); ok || isInteger(v, 32) {
			return nil
		}
		return wrong(path, v, "must be an integer or a string")
	}
	if t == reflect.TypeFor[metav1.Time]() {
		if text, ok := v.(string); ok {
			if _, err := time.Parse(time.RFC3339, text); err == nil {
				return nil
			}
		}
		return wrong(path, v, "must be a time such as 2026-01-02T15:04:05Z")
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		text, err := json.Marshal(v)
		if err == nil {
			err = json.Unmarshal(text, reflect.New(t).Interface())
		}
		if err != nil {
			return wrong(path, v, err.Error())
		}
		return nil
	}
	switch t.Kind() {
	case reflect.Struct:
		return misfitStruct(v, t, path)
	case reflect.Map:
		m, ok := v.(map[string]any)
		if !ok {
			return wrong(path, v, "must be an object with keys and values")
		}
		var errs field.ErrorList
		for _, k := range keys(m) {
			errs = append(errs, misfit(m[k], t.Elem(), path.Key(k))...)
		}
		return errs
	case reflect.Slice:
		return misfitSlice(v, t, path)
	}
	return misfitScalar(v, t, path)
}

func misfitStruct(v any, t reflect.Type, path *field.Path) field.ErrorList {
	m, ok := v.(map[string]any)
	if !ok {
		return wrong(path, v, "must be an object with fields")
	}
	var errs field.ErrorList
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case f.Anonymous && (name == "" || strings.Contains(options, "inline")):
			errs = append(errs, misfit(v, f.Type, path)...)
		default:
			if name == "" {
				name = f.Name
			}
			errs = append(errs, misfit(m[name], f.Type, child(path, name))...)
		}
	}
	return errs
}

func misfitSlice(v any, t reflect.Type, path *field.Path) field.ErrorList {
	if t.Elem().Kind() == reflect.Uint8 {
		if _, ok := v.(string); ok {
			return nil
		}
		return wrong(path, v, "must be a string in base64")
	}
	list, ok := v.([]any)
	if !ok {
		return wrong(path, v, "must be a list")
	}
	var errs field.ErrorList
	for i, e := range list {
		errs = append(errs, misfit(e, t.Elem(), path.Index(i))...)
	}
	return errs
}

func misfitScalar(v any, t reflect.Type, path *field.Path) field.ErrorList {
	switch t.Kind() {
	case reflect.String:
		if _, ok := v.(string); !ok {
			return wrong(path, v, "must be a string: put it in quotes")
		}
	case reflect.Bool:
		if _, ok := v.(bool); !ok {
			return wrong(path, v, "must be true or false")
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if !isInteger(v, t.Bits()) {
			return wrong(path, v, fmt.Sprintf("must be an integer of at most %d bits", t.Bits()))
		}
	}
	return nil
}

func isInteger(v any, bits int) bool {
	n, ok := v.(int64)
	return ok && (bits == 64 || n >= math.MinInt32 && n <= math.MaxInt32)
}

// wrong formats a value of any shape in one short line.
func wrong(path *field.Path, v any, want string) field.ErrorList {
	if path == nil {
		path = field.NewPath(wholeDocument)
	}
	text, err := json.Marshal(v)
	if err != nil {
		text = []byte(fmt.Sprint(v))
	}
	return field.ErrorList{field.TypeInvalid(path, field.OmitValueType{}, Bounded(string(text), MaxValue)+": "+want)}
}

func child(path *field.Path, name string) *field.Path {
	if path == nil {
		return field.NewPath(name)
	}
	return path.Child(name)
}

// integers rewrites JSON of a custom resource: an API server accepts 5.0 for the integer 5 there, but not
// in built-in kinds. It returns the text itself if that has no such number, or is invalid.
func integers(raw []byte) []byte {
	var v any
	if kjson.UnmarshalCaseSensitivePreserveInts(raw, &v) != nil {
		return raw
	}
	changed := false
	v = integer(v, &changed)
	if !changed {
		return raw
	}
	out, err := json.Marshal(v)
	if err != nil {
		return raw
	}
	return out
}

// integer replaces numbers without fractions by integers.
func integer(v any, changed *bool) any {
	switch v := v.(type) {
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			*changed = true
			return int64(v)
		}
	case []any:
		for i := range v {
			v[i] = integer(v[i], changed)
		}
	case map[string]any:
		for k := range v {
			v[k] = integer(v[k], changed)
		}
	}
	return v
}
