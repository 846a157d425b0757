// SPDX-License-Identifier: Apache-2.0

package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"strings"
	"testing"
)

// Limits for code that is written by hand. Lines count from the first to the last.
const (
	mostFiles         = 25  // of a package, without tests
	mostLines         = 500 // of a file
	mostFunctionLines = 70  // of a function
)

// TestSizes checks that packages, files and functions stay readable.
func TestSizes(t *testing.T) {
	files := make(map[string]int)
	for _, f := range sources(t, ".go") {
		if f.generated {
			continue
		}
		if n := strings.Count(f.text, "\n"); n > mostLines {
			t.Errorf("%s has %d lines: split it, at most %d are allowed", f.name, n, mostLines)
		}
		if !strings.HasSuffix(f.name, "_test.go") {
			files[path.Dir(f.name)]++
		}
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, f.name, f.text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := fset.Position(fn.End()).Line - fset.Position(fn.Pos()).Line + 1; n > mostFunctionLines {
				t.Errorf("%s: %s has %d lines: split it, at most %d are allowed", f.name, fn.Name.Name, n, mostFunctionLines)
			}
		}
	}
	for dir, n := range files {
		if n > mostFiles {
			t.Errorf("%s has %d files besides tests: give a part of them a package, at most %d are allowed", dir, n, mostFiles)
		}
	}
}
