// SPDX-License-Identifier: Apache-2.0

package recipe

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

// mostFiles is how many existing files a feature may edit.
const mostFiles = 8

// row is a row of the table in CONTRIBUTING.md: a file that a feature edits, and what it adds there.
type row struct{ file, adds string }

// table reads the table of the section "How to add a feature".
func table(t *testing.T) (rows []row) {
	t.Helper()
	text, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "## How to add a feature")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (.*) \\|$").FindAllStringSubmatch(section, -1) {
		rows = append(rows, row{m[1], m[2]})
	}
	return rows
}

// TestRecipe checks the table: each file exists and declares what the table names, and there are at most
// mostFiles.
func TestRecipe(t *testing.T) {
	rows := table(t)
	if len(rows) < 5 || len(rows) > mostFiles {
		t.Errorf("%d files are listed, want 5 to %d", len(rows), mostFiles)
	}
	named := regexp.MustCompile("`([A-Za-z]+)`(?: and|:)")
	for _, row := range rows {
		file := filepath.Join("../..", row.file)
		if _, err := os.Stat(file); err != nil {
			t.Errorf("a file of the recipe is missing: %v", err)
			continue
		}
		if !strings.HasSuffix(file, ".go") {
			continue
		}
		declared := declarations(t, file)
		for _, name := range named.FindAllStringSubmatch(row.adds, -1) {
			if !declared[name[1]] {
				t.Errorf("%s does not declare %s", row.file, name[1])
			}
		}
	}
}

// declarations returns the names of the functions, methods, types, variables and constants of a file.
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
				switch s := s.(type) {
				case *ast.TypeSpec:
					names[s.Name.Name] = true
				case *ast.ValueSpec:
					for _, name := range s.Names {
						names[name.Name] = true
					}
				}
			}
		}
	}
	return names
}
