// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"github.com/isthmus-net/isthmus/common/kube/convert"
	"strings"
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
	return convert.OneLine(strings.Join(parts, ": "))
}

// Warning is a remark on a document that is used nevertheless.
type Warning DocumentError

// String returns all fields in one line.
func (w Warning) String() string { return DocumentError(w).Error() }
