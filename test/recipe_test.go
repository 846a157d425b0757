// SPDX-License-Identifier: Apache-2.0

package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRecipe checks the table of CONTRIBUTING.md that says which files a feature edits: each exists, declares
// what the table names, and there are at most eight.
func TestRecipe(t *testing.T) {
	text, err := os.ReadFile("../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "## How to add a feature")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (.*) \\|$").FindAllStringSubmatch(section, -1)
	if len(rows) < 5 || len(rows) > 8 {
		t.Errorf("%d files are listed, want 5 to 8", len(rows))
	}
	named := regexp.MustCompile("`([A-Za-z]+)`(?: and|:)")
	for _, row := range rows {
		file := filepath.Join("..", row[1])
		if _, err := os.Stat(file); err != nil {
			t.Errorf("a file of the recipe is missing: %v", err)
			continue
		}
		if !strings.HasSuffix(file, ".go") {
			continue
		}
		declared := declarations(t, file)
		for _, name := range named.FindAllStringSubmatch(row[2], -1) {
			if !declared[name[1]] {
				t.Errorf("%s does not declare %s", row[1], name[1])
			}
		}
	}
}

// declarations returns the names of the functions, methods and types of a file.
func declarations(t *testing.T, file string) map[string]bool {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, d := range parsed.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			names[d.Name.Name] = true
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if s, ok := s.(*ast.TypeSpec); ok {
					names[s.Name.Name] = true
				}
			}
		}
	}
	return names
}
