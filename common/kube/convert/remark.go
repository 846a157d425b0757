// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// remark is a problem of one field of an object, or a note about it.
type remark struct {
	field  string
	detail string
}

func (r remark) String() string {
	if r.field == "" {
		return r.detail
	}
	return r.field + ": " + r.detail
}

// maxValue bounds how much of a bad value an error repeats, in bytes.
const maxValue = 200

// wholeDocument is the path of a document as a whole, which has no field.
const wholeDocument = "(document)"

// remarks converts errors of the API's own validation to remarks. The library iterates over maps, so this
// sorts errors of one field into a fixed order.
func remarks(errs field.ErrorList) []remark {
	var out []remark
	for _, e := range errs {
		out = append(out, remark{field: bounded(strings.TrimSuffix(e.Field, wholeDocument), 2*maxValue), detail: oneLine(detail(e))})
	}
	for from := 0; from < len(out); {
		to := from + 1
		for to < len(out) && out[to].field == out[from].field {
			to++
		}
		slices.SortFunc(out[from:to], func(a, b remark) int { return strings.Compare(a.detail, b.detail) })
		from = to
	}
	return out
}

// detail formats the bad value and the remedy. The library omits the remedy where the schema implies it.
func detail(e *field.Error) string {
	d := *e
	if v := reflect.ValueOf(d.BadValue); v.Kind() == reflect.String {
		d.BadValue = bounded(v.String(), maxValue)
	}
	switch {
	case d.Detail == "not a valid selector operator":
		d.Detail = "must be In, NotIn, Exists or DoesNotExist"
	case d.Detail == "" && d.Type == field.ErrorTypeRequired:
		d.Detail = "set this field"
	case d.Detail == "" && d.Type == field.ErrorTypeDuplicate:
		d.Detail = "write it once"
	}
	return bounded(d.ErrorBody(), 5*maxValue)
}

// bounded truncates a text of a document.
func bounded(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return s[:limit] + "..."
}

// oneLine removes line breaks from an error, whatever a document contains.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0x2028 || r == 0x2029 || r == 0x85 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

// maxRemarks bounds the errors, and the warnings, that are kept.
const maxRemarks = 1000

// noName replaces the name of an object without one. It is not a valid name.
const noName = "?"

// objectName formats "Kind namespace/name", with question marks for missing parts. It does not truncate
// valid names.
func objectName(kind, namespace, name string) string {
	if name == "" {
		name = noName
	}
	if name = bounded(name, 2*maxValue); namespace != "" {
		name = bounded(namespace, maxValue) + "/" + name
	}
	return bounded(kind, maxValue) + " " + name
}

// quoted bounds and quotes a bad value.
func quoted(s string) string { return strconv.Quote(bounded(s, maxValue)) }
