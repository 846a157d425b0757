// SPDX-License-Identifier: Apache-2.0

package test

import (
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

var update = flag.Bool("update", false, "write the generated parts of documents again")

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

var helmCommand = regexp.MustCompile(`helm (?:install|upgrade) isthmus (?:[^\n\x60\\]|\\\n)*`)

// TestHelmCommands checks that commands in documents name a chart that the checkout has, and the namespace of the release.
func TestHelmCommands(t *testing.T) {
	found := 0
	for _, f := range sources(t, ".md") {
		for _, command := range helmCommand.FindAllString(f.text, -1) {
			found++
			if words := strings.Fields(command); words[3] != "deploy/helm/isthmus" {
				t.Errorf("%s: %s: chart %s, want deploy/helm/isthmus", f.name, command, words[3])
			}
			if !strings.Contains(command, " --namespace isthmus-system") && !strings.Contains(command, " -n isthmus-system") {
				t.Errorf("%s: %s: names no namespace", f.name, command)
			}
		}
	}
	if found < 8 {
		t.Errorf("%d commands in documents, want 8 or more", found)
	}
}

// Every file states its licence in its first line.
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

// Each package of the analysis library has an example that runs.
func TestAnalysisHasExamples(t *testing.T) {
	examples := make(map[string]bool)
	for _, f := range sources(t, ".go") {
		if dir := filepath.ToSlash(filepath.Dir(f.name)); strings.HasPrefix(dir, "common/analysis/") {
			isExample := strings.HasSuffix(f.name, "_test.go") && strings.Contains(f.text, "\nfunc Example") && strings.Contains(f.text, "// Output:\n")
			examples[dir] = examples[dir] || isExample
		}
	}
	if len(examples) < 5 {
		t.Fatalf("common/analysis has the packages %v: were they moved?", examples)
	}
	for dir, has := range examples {
		if !has {
			t.Errorf("%s has no example: add one in example_test.go", dir)
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

// TestArchitecture checks that ARCHITECTURE.md stays short and that its code map has a
// directory for every package.
func TestArchitecture(t *testing.T) {
	const mostLines, mostRows = 150, 18
	b, err := os.ReadFile("../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), "\n"); n > mostLines {
		t.Errorf("ARCHITECTURE.md has %d lines, at most %d are read in one sitting", n, mostLines)
	}
	_, text, _ := strings.Cut(string(b), "\n## Code map\n")
	text, _, _ = strings.Cut(text, "\n## ")
	rows := regexp.MustCompile("(?m)^\\| (`[^|]*) \\|").FindAllStringSubmatch(text, -1)
	if len(rows) == 0 || len(rows) > mostRows {
		t.Errorf("the code map of ARCHITECTURE.md has %d rows, want 1 to %d", len(rows), mostRows)
	}
	var dirs []string
	for _, row := range rows {
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			if _, err := os.Stat(filepath.Join("..", m[1])); err != nil {
				t.Errorf("the code map of ARCHITECTURE.md names %s: %v", m[1], err)
			}
			dirs = append(dirs, m[1])
		}
	}
	seen := make(map[string]bool)
	for _, f := range sources(t, ".go") {
		if dir := path.Dir(f.name); !seen[dir] && !under(dir, dirs) {
			seen[dir] = true
			t.Errorf("the code map of ARCHITECTURE.md has no directory for package %s", dir)
		}
	}
}

// Relative links in documents lead to a file, and to a heading of it.
func TestLinks(t *testing.T) {
	headings := make(map[string]map[string]bool) // the anchors of each document
	for _, f := range sources(t, ".md") {
		headings[f.name] = make(map[string]bool)
		for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(f.text, -1) {
			headings[f.name][anchor(m[1])] = true
		}
	}
	for _, f := range sources(t, ".md") {
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(f.text, -1) {
			target, heading, inside := strings.Cut(m[1], "#")
			if strings.Contains(m[1], "://") {
				continue
			}
			file := f.name
			if target != "" {
				file = path.Join(path.Dir(f.name), target)
			}
			if _, err := os.Stat(filepath.Join("..", file)); err != nil {
				t.Errorf("%s links to %s: %v", f.name, target, err)
			} else if inside && !headings[file][heading] {
				t.Errorf("%s links to %s, which has no heading %q", f.name, file, heading)
			}
		}
	}
}

// anchor returns the name by which a link names a heading.
func anchor(heading string) string {
	kept := func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
			return unicode.ToLower(r)
		}
		return -1
	}
	return strings.Map(kept, heading)
}

// TestReadmeOfCommon checks that common/README.md has a row for every directory.
func TestReadmeOfCommon(t *testing.T) {
	text, err := os.ReadFile("../common/README.md")
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadDir("../common")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		if n := strings.Count(string(text), fmt.Sprintf("| [%[1]s](%[1]s) |", d.Name())); d.IsDir() && n != 1 {
			t.Errorf("common/README.md has %d rows for %s", n, d.Name())
		}
	}
}

// TestNamedTestsExist checks that tests that a document cites as proof exist. A name may end with a star.
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
				t.Errorf("%s names %s, which is not a test", f.name, m[1])
			}
		}
	}
	if named == 0 {
		t.Error("no document names a test")
	}
}

// TestReadmeOfBPF checks that bpf/README.md describes the maps and functions that exist.
func TestReadmeOfBPF(t *testing.T) {
	b, err := os.ReadFile("../bpf/README.md")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, suffix := range []string{".c", ".h"} {
		for _, f := range sources(t, suffix) {
			if strings.HasPrefix(f.name, "bpf/") && !strings.HasPrefix(f.name, "bpf/bench") {
				code.WriteString(f.text)
			}
		}
	}
	_, table, _ := strings.Cut(string(b), "Sizes are in bytes.")
	_, table, _ = strings.Cut(table, "```\n")
	table, _, _ = strings.Cut(table, "\n```")
	documented := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^([a-z_]+)(4/6)?\s`).FindAllStringSubmatch(table, -1) {
		if m[2] == "" {
			documented[m[1]] = true
		} else {
			documented[m[1]+"4"], documented[m[1]+"6"] = true, true
		}
	}
	maps := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^} (\w+) SEC\("\.maps"\)`).FindAllStringSubmatch(code.String(), -1) {
		maps[m[1]] = true
		if !documented[m[1]] {
			t.Errorf("bpf/README.md does not describe map %s", m[1])
		}
	}
	for name := range documented {
		if !maps[name] {
			t.Errorf("bpf/README.md describes map %s, which does not exist", name)
		}
	}
	steps := regexp.MustCompile("(?m)^\\| \\d+ \\| (`[^|]*) \\|").FindAllStringSubmatch(string(b), -1)
	if len(steps) == 0 || len(maps) == 0 {
		t.Fatalf("bpf/README.md has %d steps of a packet, bpf has %d maps", len(steps), len(maps))
	}
	for _, step := range steps {
		for _, f := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(step[1], -1) {
			if !regexp.MustCompile(`\b` + f[1] + `\([^)]*\)\n\{`).MatchString(code.String()) {
				t.Errorf("bpf/README.md names function %s, which bpf does not define", f[1])
			}
		}
	}
}

// TestExamplesOfREADME runs the commands that README.md shows with "$ bin/linux/isthmusctl",
// and compares what they print.
func TestExamplesOfREADME(t *testing.T) {
	b, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```\n\\$ bin/linux/isthmusctl ([^\n]*)\n(.*?)```").FindAllStringSubmatch(string(b), -1)
	if len(examples) == 0 {
		t.Fatal("README.md has no example of isthmusctl")
	}
	command := filepath.Join(t.TempDir(), "isthmusctl")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", command, "./cmd/isthmusctl")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build isthmusctl: %v\n%s", err, out)
	}
	for _, e := range examples {
		run := exec.Command(command, strings.Fields(e[1])...)
		run.Dir = ".."
		out, _ := run.Output() // status 1 is an answer
		if string(out) != e[2] {
			t.Errorf("isthmusctl %s prints\n%s\nREADME.md has\n%s", e[1], out, e[2])
		}
	}
}

// TestDecisions checks that docs/adr/README.md lists every decision by its number and title, lists
// the unused numbers, and that decisions stay short.
func TestDecisions(t *testing.T) {
	const mostWords = 480
	raw, err := os.ReadFile("../docs/adr/README.md")
	if err != nil {
		t.Fatal(err)
	}
	index := string(raw)
	listed := regexp.MustCompile(`(?m)^\| (\d+) \| \[`).FindAllStringSubmatch(index, -1)
	numbers := make(map[int]bool)
	for _, f := range sources(t, ".md") {
		name, ok := strings.CutPrefix(f.name, "docs/adr/")
		if !ok || name == "README.md" {
			continue
		}
		heading := regexp.MustCompile(`^# (\d+)\. (.*)\n`).FindStringSubmatch(f.text)
		if heading == nil {
			t.Errorf("%s does not begin with a number and a title", f.name)
			continue
		}
		n, _ := strconv.Atoi(heading[1])
		if !strings.HasPrefix(name, fmt.Sprintf("%04d-", n)) || numbers[n] {
			t.Errorf("%s has number %d in its title, or another decision has it", f.name, n)
		}
		numbers[n] = true
		row := fmt.Sprintf(`(?m)^\| %d \| \[%s\]\(%s\) \| \S.* \| \d{4}-\d\d-\d\d \|$`, n, regexp.QuoteMeta(heading[2]), regexp.QuoteMeta(name))
		if !regexp.MustCompile(row).MatchString(index) {
			t.Errorf("docs/adr/README.md has no row for %d, %q, %s with status and date", n, heading[2], name)
		}
		if words := len(strings.Fields(f.text)); words > mostWords {
			t.Errorf("%s has %d words, at most %d: move measurements and design to docs/design", f.name, words, mostWords)
		}
	}
	if len(listed) != len(numbers) {
		t.Errorf("docs/adr/README.md lists %d decisions, there are %d", len(listed), len(numbers))
	}
	unused := regexp.MustCompile(`Numbers ([^.]*) were never used`).FindStringSubmatch(index)
	for n := 1; n <= slices.Max(slices.Collect(maps.Keys(numbers))); n++ {
		if said := unused != nil && regexp.MustCompile(fmt.Sprintf(`\b%d\b`, n)).MatchString(unused[1]); said == numbers[n] {
			t.Errorf("decision %d: there is one: %v, docs/adr/README.md calls the number unused: %v", n, numbers[n], said)
		}
	}
}
