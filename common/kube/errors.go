// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// DocumentError says what is wrong with one document, or with a file or the
// directory as a whole.
type DocumentError struct {
	// File is the path below the directory that was read.
	File string
	// Document counts the file's documents from 1; 0 means the whole file.
	Document int
	// Line is the line of the file on which the document begins; 0 if unknown.
	Line int
	// Object is "Kind namespace/name" as far as it is known.
	Object string
	// Field is the path of the field, such as
	// spec.ingress[0].from[1].ipBlock.cidr; empty if no field is to blame.
	Field string
	// Detail is the bad value and what to write instead.
	Detail string
}

// Error says everything in one line.
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

// Warning is a remark on a document that was taken in all the same.
type Warning DocumentError

// String says everything in one line.
func (w Warning) String() string { return DocumentError(w).Error() }

// remark is what is wrong with, or notable about, one field of an object.
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

// maxValue bounds how much of a bad value is repeated in an error, in bytes.
const maxValue = 200

// wholeDocument is the path of a document as a whole, which has no field.
const wholeDocument = "(document)"

// remarks turns errors of the API's own validation into remarks. The library
// walks over maps, so errors of one field are put in a fixed order here.
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

// detail renders the bad value and the remedy. The library leaves out the
// remedy where a person with the schema at hand would guess it.
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

// bounded cuts a text that a document made long.
func bounded(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return s[:limit] + "..."
}

// oneLine keeps an error on one line whatever a document puts into it.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0x2028 || r == 0x2029 || r == 0x85 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}
