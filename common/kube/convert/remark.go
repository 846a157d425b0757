// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Remark is a problem of one field of an object, or a note about it.
type Remark struct {
	// Field is the path of the field, such as spec.ingress[0].from; empty if it concerns no single field.
	Field string
	// Detail is the bad value and the remedy.
	Detail string
}

// String returns "field: detail", or the detail alone.
func (r Remark) String() string {
	if r.Field == "" {
		return r.Detail
	}
	return r.Field + ": " + r.Detail
}

// MaxValue bounds how much of a bad value an error repeats, in bytes.
const MaxValue = 200

// wholeDocument is the path of a document as a whole, which has no field.
const wholeDocument = "(document)"

// Remarks converts errors of the API's own validation to remarks. The library iterates over maps, so this
// sorts errors of one field into a fixed order.
func Remarks(errs field.ErrorList) []Remark {
	var out []Remark
	for _, e := range errs {
		out = append(out, Remark{Field: Bounded(strings.TrimSuffix(e.Field, wholeDocument), 2*MaxValue), Detail: OneLine(detail(e))})
	}
	for from := 0; from < len(out); {
		to := from + 1
		for to < len(out) && out[to].Field == out[from].Field {
			to++
		}
		slices.SortFunc(out[from:to], func(a, b Remark) int { return strings.Compare(a.Detail, b.Detail) })
		from = to
	}
	return out
}

// detail formats the bad value and the remedy. The library omits the remedy where the schema implies it.
func detail(e *field.Error) string {
	d := *e
	if v := reflect.ValueOf(d.BadValue); v.Kind() == reflect.String {
		d.BadValue = Bounded(v.String(), MaxValue)
	}
	switch {
	case d.Detail == "not a valid selector operator":
		d.Detail = "must be In, NotIn, Exists or DoesNotExist"
	case d.Detail == "" && d.Type == field.ErrorTypeRequired:
		d.Detail = "set this field"
	case d.Detail == "" && d.Type == field.ErrorTypeDuplicate:
		d.Detail = "write it once"
	}
	return Bounded(d.ErrorBody(), 5*MaxValue)
}

// Bounded truncates a text of a document.
func Bounded(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return s[:limit] + "..."
}

// OneLine removes line breaks from an error, whatever a document contains.
func OneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0x2028 || r == 0x2029 || r == 0x85 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

// MaxRemarks bounds the errors, and the warnings, that are kept.
const MaxRemarks = 1000

// NoName replaces the name of an object without one. It is not a valid name.
const NoName = "?"

// ObjectName formats "Kind namespace/name", with question marks for missing parts. It does not truncate
// valid names.
func ObjectName(kind, namespace, name string) string {
	if name == "" {
		name = NoName
	}
	if name = Bounded(name, 2*MaxValue); namespace != "" {
		name = Bounded(namespace, MaxValue) + "/" + name
	}
	return Bounded(kind, MaxValue) + " " + name
}

// Quoted bounds and quotes a bad value.
func Quoted(s string) string { return strconv.Quote(Bounded(s, MaxValue)) }
