// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// DocumentError is a problem of one document, of a file, or of the directory.
type DocumentError struct {
	// File is the path below the directory that was read.
	File string
	// Document counts the file's documents from 1; 0 means the whole file.
	Document int
	// Line is the line of the file on which the document begins; 0 if unknown.
	Line int
	// Object is "Kind namespace/name" as far as it is known.
	Object string
	// Field is the path of the field, such as spec.ingress[0].from[1].ipBlock.cidr; empty if the problem
	// concerns no single field.
	Field string
	// Detail is the bad value and the remedy.
	Detail string
}

// Error returns all fields in one line.
func (e DocumentError) Error() string {
	parts := []string{e.File}
	if e.Document > 0 {
		at := fmt.Sprintf("document %d", e.Document)
		if e.Line > 0 {
			at += fmt.Sprintf(" (line %d)", e.Line)
		}
		parts = append(parts, at)
	}
	for _, s := range []string{e.Object, e.Field, e.Detail} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return oneLine(strings.Join(parts, ": "))
}

// Warning is a remark on a document that is used nevertheless.
type Warning DocumentError

// String returns all fields in one line.
func (w Warning) String() string { return DocumentError(w).Error() }

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
