// SPDX-License-Identifier: Apache-2.0

package test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestSecurityNamesTests checks that each test that SECURITY.md names exists, in the package that it names with the
// test, or else in any.
func TestSecurityNamesTests(t *testing.T) {
	found := make(map[string][]string) // packages by test
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range function.FindAllStringSubmatch(string(text), -1) {
			found[m[1]] = append(found[m[1]], filepath.ToSlash(strings.TrimPrefix(filepath.Dir(path), "../")))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range securityStatements(string(text)) {
		if !regexp.MustCompile("`(?:Test|Fuzz)\\w+`").MatchString(statement) {
			t.Errorf("SECURITY.md names no test of this statement: %s", statement)
		}
	}
	named := 0
	// A list of tests may end with their package, in parentheses or after "in".
	list := regexp.MustCompile("((?:`(?:Test|Fuzz)\\w+`,?\\s*)+)(?:\\(`([\\w/]+)`|in `([\\w/]+)`)?")
	for _, m := range list.FindAllStringSubmatch(string(text), -1) {
		pkg := m[2] + m[3]
		for _, name := range regexp.MustCompile(`\w+`).FindAllString(m[1], -1) {
			named++
			// In a list of several, the package may be that of the last test only.
			if pkgs := found[name]; len(pkgs) == 0 || pkg != "" && strings.Count(m[1], "`") == 2 && !slices.Contains(pkgs, pkg) {
				t.Errorf("SECURITY.md names test %s (%s), found in %q", name, pkg, pkgs)
			}
		}
	}
	if named < 45 {
		t.Errorf("SECURITY.md names %d tests, fewer than it has statements", named)
	}
}

// securityStatements returns the rows of tables and the items of lists that say what an attacker can and cannot do, and what no
// node can decide.
func securityStatements(text string) (all []string) {
	in, item := false, false
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "#"):
			in = strings.HasPrefix(line, "### Attacker") || strings.HasPrefix(line, "## What is not enforced exactly")
			item = false
		case !in:
		case strings.HasPrefix(line, "| it cannot"), strings.HasPrefix(line, "|---"):
		case strings.HasPrefix(line, "|"), strings.HasPrefix(line, "- "), strings.HasPrefix(line, "It can ") && !item:
			all = append(all, strings.TrimSpace(line))
			item = !strings.HasPrefix(line, "|")
		case item && strings.TrimSpace(line) != "":
			all[len(all)-1] += " " + strings.TrimSpace(line)
		default:
			item = false
		}
	}
	return all
}

// TestSecurityStatements checks that the statements of SECURITY.md are found, each as a whole.
func TestSecurityStatements(t *testing.T) {
	got := securityStatements("### Attacker: a pod\n\n| it cannot | test |\n|---|---|\n| a | b |\n\nIt can:\n\n- c\n  d;\n- e.\n\nText.\n\n" +
		"It can f,\nand g.\n\n## Other\n\n- h\n")
	want := []string{"| a | b |", "- c d;", "- e.", "It can f, and g."}
	if !slices.Equal(got, want) {
		t.Errorf("statements are %q, want %q", got, want)
	}
}

// TestPluginStartsNoProgram checks that nothing in the CNI plugin can start another program.
func TestPluginStartsNoProgram(t *testing.T) {
	for _, goos := range []string{"linux", "windows"} {
		for _, p := range list(t, goos, "./cmd/isthmus-cni") {
			if slices.Contains(p.Deps, "os/exec") {
				t.Errorf("%s for %s imports os/exec", p.ImportPath, goos)
			}
		}
	}
}
