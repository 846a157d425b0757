// SPDX-License-Identifier: Apache-2.0

package test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// source is a file of the repository.
type source struct {
	name      string // from the top of the repository
	text      string
	generated bool
}

// sources reads all files with a suffix.
func sources(t *testing.T, suffix string) []source {
	t.Helper()
	var all []source
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel("..", path)
		if d.IsDir() {
			if name == ".git" || name == "bin" || name == "build" {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, suffix) {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		head := string(b[:min(len(b), 500)])
		all = append(all, source{name: filepath.ToSlash(name), text: string(b), generated: strings.Contains(head, "DO NOT EDIT")})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatalf("no file ends in %s", suffix)
	}
	return all
}

// Every file says its licence in its first line.
func TestLicences(t *testing.T) {
	for suffix, want := range map[string]string{
		".go": "// SPDX-License-Identifier: Apache-2.0\n",
		".c":  "/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */\n",
		".h":  "/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */\n",
	} {
		for _, f := range sources(t, suffix) {
			if !f.generated && !strings.HasPrefix(f.text, want) {
				t.Errorf("%s does not start with %q", f.name, want)
			}
		}
	}
}

// Every package has exactly one package comment, in a file that every system
// builds, of at most 15 lines, that says what the package is for.
func TestPackageComments(t *testing.T) {
	docs := make(map[string][]string)
	packages := make(map[string]bool)
	for _, f := range sources(t, ".go") {
		if strings.HasSuffix(f.name, "_test.go") || f.generated {
			continue
		}
		dir := filepath.ToSlash(filepath.Dir(f.name))
		packages[dir] = true
		parsed, err := parser.ParseFile(token.NewFileSet(), f.name, f.text, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			t.Fatal(err)
		}
		if parsed.Doc == nil {
			continue
		}
		docs[dir] = append(docs[dir], f.name)
		text := parsed.Doc.Text()
		name := parsed.Name.Name
		if !strings.HasPrefix(text, "Package "+name+" ") && !(name == "main" && strings.HasPrefix(text, "Command "+filepath.Base(dir)+" ")) {
			t.Errorf("%s: package comment starts with %q", f.name, strings.SplitN(text, "\n", 2)[0])
		}
		if n := strings.Count(text, "\n"); n > 15 {
			t.Errorf("%s: package comment has %d lines, at most 15 are read", f.name, n)
		}
		if base := strings.TrimSuffix(filepath.Base(f.name), ".go"); strings.HasSuffix(base, "_linux") || strings.HasSuffix(base, "_windows") || strings.Contains(f.text, "\n//go:build") {
			t.Errorf("%s: the package comment is in a file that only some systems build", f.name)
		}
	}
	for dir := range packages {
		if len(docs[dir]) != 1 {
			t.Errorf("%s has %d package comments, want 1: %v", dir, len(docs[dir]), docs[dir])
		}
	}
}

// ARCHITECTURE.md names every package of the product.
func TestArchitectureNamesEveryPackage(t *testing.T) {
	b, err := os.ReadFile("../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, f := range sources(t, ".go") {
		dir := filepath.ToSlash(filepath.Dir(f.name))
		if seen[dir] {
			continue
		}
		seen[dir] = true
		if !strings.Contains(string(b), "`"+dir+"`") && !strings.Contains(string(b), "`"+dir+"/`") {
			t.Errorf("ARCHITECTURE.md does not name %s", dir)
		}
	}
}

// Relative links in documents lead somewhere.
func TestLinks(t *testing.T) {
	for _, f := range sources(t, ".md") {
		for rest := f.text; ; {
			_, after, ok := strings.Cut(rest, "](")
			if !ok {
				break
			}
			target, tail, _ := strings.Cut(after, ")")
			rest = tail
			target, _, _ = strings.Cut(target, "#")
			if target == "" || strings.Contains(target, "://") || strings.ContainsAny(target, " \n") {
				continue
			}
			if _, err := os.Stat(filepath.Join("..", filepath.Dir(f.name), target)); err != nil {
				t.Errorf("%s links to %s: %v", f.name, target, err)
			}
		}
	}
}

// Tests that a document names as the proof of what it says are there. A name may end
// with a star.
func TestNamedTestsExist(t *testing.T) {
	var all []string
	for _, f := range sources(t, "_test.go") {
		for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`).FindAllStringSubmatch(f.text, -1) {
			all = append(all, m[1])
		}
	}
	named := 0
	for _, f := range sources(t, ".md") {
		for _, m := range regexp.MustCompile("`((?:Test|Fuzz)\\w+)(\\*?)`").FindAllStringSubmatch(f.text, -1) {
			named++
			if !slices.ContainsFunc(all, func(name string) bool { return name == m[1] || m[2] == "*" && strings.HasPrefix(name, m[1]) }) {
				t.Errorf("%s names %s, which is no test", f.name, m[1])
			}
		}
	}
	if named == 0 {
		t.Error("no document names a test")
	}
}
