// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/isthmus-net/isthmus/"

// TestMain runs the tests at the top of the repository, as make runs the command.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// TestSuites checks that the Makefile calls every suite of the table, that it calls no
// other, and that every step finds packages.
func TestSuites(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	var called []string
	for _, m := range regexp.MustCompile(`(?m)^\t@\$\(run\) ([a-z-]+)$`).FindAllStringSubmatch(string(makefile), -1) {
		called = append(called, m[1])
	}
	slices.Sort(called)
	var names, patterns []string
	for _, s := range suites() {
		names = append(names, s.name)
		if len(s.steps) == 0 && !s.fuzz {
			t.Errorf("suite %s has no step", s.name)
		}
		for _, step := range s.steps {
			if step.dir != "" {
				if _, err := os.Stat(filepath.Join(step.dir, "go.mod")); err != nil {
					t.Errorf("suite %s: %v", s.name, err)
				}
				continue // go list would download the dependencies of that module
			}
			patterns = append(patterns, step.packages...)
			if _, err := step.list(); err != nil {
				t.Errorf("suite %s: %v", s.name, err)
			}
		}
	}
	slices.Sort(patterns)
	patterns = slices.Compact(patterns)
	// It says on standard error which pattern matches nothing.
	if out, err := exec.Command("go", append([]string{"list", "-f", `{{""}}`}, patterns...)...).CombinedOutput(); err != nil || len(strings.TrimSpace(string(out))) > 0 {
		t.Errorf("go list of the packages of all suites: %v\n%s", err, out)
	}
	slices.Sort(names)
	if !slices.Equal(called, names) {
		t.Errorf("the Makefile runs the suites\n%s\nthe table has\n%s", called, names)
	}
}

// TestExcept checks that a step runs neither more nor less than it says.
func TestExcept(t *testing.T) {
	got, err := step{packages: []string{"./test/run/...", "./test/netns"}, except: []string{"test/netns"}}.list()
	if want := []string{module + "test/run"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("packages %v, %v, want %v", got, err, want)
	}
	if got, err := (step{packages: []string{"./test/run"}, except: []string{"test/runs"}}).list(); err == nil {
		t.Errorf("a package that does not exist is excluded from %v without an error", got)
	}
}

// TestBeside runs steps beside each other: each of their lines arrives whole, and the suite fails if one of them does.
func TestBeside(t *testing.T) {
	var out bytes.Buffer
	s := suite{beside: true, steps: []step{
		{packages: []string{"./test/smoke"}, flags: []string{"-list=."}},
		{packages: []string{"./test/no-such-package"}},
		{packages: []string{"./test/kubernetes"}, flags: []string{"-list=."}},
	}}
	if err := s.run(&out, true); err == nil || !strings.Contains(err.Error(), "no-such-package") || strings.Contains(err.Error(), "smoke") {
		t.Errorf("error %v, want one about no-such-package", err)
	}
	if got, err := count(&out); err != nil || got.packages != 3 || got.broken != 1 {
		t.Errorf("counted %+v, %v, want three packages, one broken", got, err)
	}
	whole := &lines{to: &out, writing: new(sync.Mutex)}
	for _, part := range []string{"a", "b\nc\nd", "", "e\n"} {
		before := out.Len()
		if n, err := whole.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatalf("wrote %d bytes of %q: %v", n, part, err)
		}
		if b := out.Bytes()[before:]; len(b) > 0 && b[len(b)-1] != '\n' {
			t.Errorf("%q is no whole line", b)
		}
	}
	if got, want := out.String(), "ab\nc\nde\n"; got != want {
		t.Errorf("lines %q, want %q", got, want)
	}
}

// TestCount counts the results of a module in which tests pass, fail and skip, a package
// does not compile, and one ends before its tests do.
func TestCount(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":         "module m\n\ngo 1.26\n",
		"a/a_test.go":    "package a\n\nimport \"testing\"\n\nfunc TestPass(t *testing.T) { t.Run(\"sub\", func(*testing.T) {}) }\n\nfunc TestFail(t *testing.T) { t.Fatal() }\n\nfunc TestSkip(t *testing.T) { t.Skip() }\n",
		"bad/b_test.go":  "package bad\n\nvar x int = \"\"\n",
		"exit/c_test.go": "package exit\n\nimport (\"os\"; \"testing\")\n\nfunc TestMain(*testing.M) { os.Exit(3) }\n",
		"none/none.go":   "package none\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "test", "-json", "./...")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err == nil {
		t.Fatal("go test passes")
	}
	got, err := count(bytes.NewReader(out))
	if want := (totals{packages: 4, tests: 4, passed: 2, failed: 1, skipped: 1, broken: 3}); err != nil || got != want {
		t.Errorf("counted %+v, %v, want %+v; events:\n%s", got, err, want, out)
	}
	if want := "test: packages=4 tests=4 passed=2 failed=1 skipped=1"; got.String() != want {
		t.Errorf("totals %q, want %q", got, want)
	}
}

// TestFuzzSteps checks that make fuzz finds the fuzz tests of packages.
func TestFuzzSteps(t *testing.T) {
	steps, err := fuzzSteps("./common/ipam", "./common/httpd", "./common/api/cniframe")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range steps {
		got = append(got, s.packages[0]+" "+s.flags[1])
	}
	want := []string{module + "common/ipam -fuzz=^FuzzOperations$", module + "common/ipam -fuzz=^FuzzPrefixes$", module + "common/api/cniframe -fuzz=^FuzzRead$"}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("fuzz tests %v, want %v", got, want)
	}
	if steps, err := fuzzSteps("./common/httpd"); err == nil {
		t.Errorf("steps of a package without fuzz tests: %v", steps)
	}
}

// TestReport checks the line of files that tests leave, and that an earlier line goes.
func TestReport(t *testing.T) {
	r := report{prefix: "windows: ", files: filepath.Join(t.TempDir(), "windows", "*")}
	if err := r.clear(); err != nil {
		t.Fatal(err)
	}
	if got := r.text(); !strings.Contains(got, "no report") {
		t.Errorf("without files: %q", got)
	}
	for name, text := range map[string]string{"1-wine": "exe=4\n", "2-conformance": "cases=9\n"} {
		if err := os.WriteFile(filepath.Join(filepath.Dir(r.files), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := r.text(), "windows: exe=4 cases=9"; got != want {
		t.Errorf("line %q, want %q", got, want)
	}
	if err := r.clear(); err != nil {
		t.Fatal(err)
	}
	if got := r.text(); !strings.Contains(got, "no report") {
		t.Errorf("after clear: %q", got)
	}
}
