// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

// TestLists reads the lists of this directory. Every mutant applies to the sources as
// they are, and the tests that must notice it exist.
func TestLists(t *testing.T) {
	all, err := readLists(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	root := os.DirFS("../..")
	areas := make(map[string]int)
	for _, m := range all {
		areas[m.area]++
		if _, err := m.apply(root); err != nil {
			t.Errorf("%s: %v", m.id, err)
		}
		for _, r := range m.runs {
			for _, name := range missing(t, root, r) {
				t.Errorf("%s: package %s has no test %s", m.id, r.pkg, name)
			}
		}
	}
	if len(all) < 200 {
		t.Errorf("%d mutants are listed, at least 200 are promised", len(all))
	}
	for _, area := range []string{"acl", "agent", "bpf", "cmd", "cni", "fabric", "kube", "linux", "oracles", "plan", "policy", "windows"} {
		if areas[area] == 0 {
			t.Errorf("no mutant of %s", area)
		}
	}
	t.Logf("mutants=%d %v", len(all), areas)
}

// missing returns the names in a command's pattern that are not tests of its package.
func missing(t *testing.T, root fs.FS, c command) (names []string) {
	t.Helper()
	files, err := fs.Glob(root, path.Join(c.pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, f := range files {
		text, err := fs.ReadFile(root, f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	top, _, _ := strings.Cut(c.run, "/")
	for name := range strings.SplitSeq(top, "|") {
		name = strings.TrimSuffix(strings.TrimPrefix(name, "^"), "$")
		if !regexp.MustCompile(`(?m)^func (` + name + `)\(`).MatchString(all.String()) {
			names = append(names, name)
		}
	}
	return names
}

const entry = `# a comment

== A1 a number is another one
run short ./x ^TestX$
run root ./y ^TestY$/^z$
ends panic
@@ x/x.go
 func f() int {
-	return 1
+	return 2
 }
@@ x/y.go
-	two()
+
`

func TestReadList(t *testing.T) {
	list, err := readList("area", entry)
	if err != nil {
		t.Fatal(err)
	}
	m := list[0]
	if len(list) != 1 || m.id != "A1" || m.area != "area" || m.ends != "panic" || len(m.hunks) != 2 || len(m.runs) != 2 {
		t.Fatalf("read %+v", list)
	}
	if m.runs[0] != (command{pkg: "./x", run: "^TestX$", short: true}) || m.runs[1] != (command{pkg: "./y", run: "^TestY$/^z$", root: true}) {
		t.Errorf("runs %+v", m.runs)
	}
	for name, c := range map[string]struct{ from, to, says string }{
		"no sentence":      {"== A1 a number is another one", "== A1", "what is wrong"},
		"no hunk":          {entry[strings.Index(entry, "@@"):], "", "nothing is changed"},
		"no test":          {"run short ./x ^TestX$\nrun root ./y ^TestY$/^z$\n", "", "tests to run or a reason"},
		"test and reason":  {"ends panic", "equivalent because", "tests to run or a reason"},
		"an end":           {"ends panic", "ends badly", "panic or timeout"},
		"a pattern":        {"^TestX$", "^Test(X$", "regexp"},
		"a package":        {"./x ^TestX$", "x ^TestX$", "./package"},
		"a word":           {"ends panic", "tries hard", "want run, equivalent"},
		"a line of a diff": {"-	two()", "two()", "first"},
		"the same text":    {"+	return 2", "+	return 1", "diff that changes"},
		"a path":           {"@@ x/x.go", "@@ ../x.go", "file of the repository"},
		"text before all":  {"# a comment", "a comment", "before the first mutant"},
	} {
		if _, err := readList("area", strings.Replace(entry, c.from, c.to, 1)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	two := fstest.MapFS{"a.txt": {Data: []byte(entry)}, "b.txt": {Data: []byte(entry)}}
	if _, err := readLists(two); err == nil || !strings.Contains(err.Error(), "another id") {
		t.Errorf("one id in two lists: %v", err)
	}
}

func TestApply(t *testing.T) {
	list, err := readList("area", entry)
	if err != nil {
		t.Fatal(err)
	}
	const x, y = "package x\n\nfunc f() int {\n\treturn 1\n}\n", "func g() {\n\ttwo()\n}\n"
	changed, err := list[0].apply(fstest.MapFS{"x/x.go": {Data: []byte(x)}, "x/y.go": {Data: []byte(y)}})
	if err != nil || changed["x/x.go"] != strings.Replace(x, "1", "2", 1) || changed["x/y.go"] != "func g() {\n\n}\n" {
		t.Errorf("%q, %v", changed, err)
	}
	for name, text := range map[string]string{"twice": x + x, "never": strings.Replace(x, "1", "3", 1), "inside a line": strings.Replace(x, "func", "/**/func", 1)} {
		if _, err := list[0].apply(fstest.MapFS{"x/x.go": {Data: []byte(text)}, "x/y.go": {Data: []byte(y)}}); err == nil || !strings.Contains(err.Error(), "want once") {
			t.Errorf("the old text is there %s: %v", name, err)
		}
	}
	if _, err := list[0].apply(fstest.MapFS{}); err == nil {
		t.Error("a file that does not exist was changed")
	}
}

// TestJudge reads what tests print.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		out  string
		ok   bool
		want outcome
	}{
		{"=== RUN TestX\n--- PASS: TestX (0.00s)\nPASS\n", true, passed},
		{"testing: warning: no tests to run\nPASS\n", true, noTest},
		{"--- SKIP: TestX (0.00s)\nPASS\n", true, noTest},
		{"--- PASS: TestX (0.00s)\n    --- SKIP: TestX/y (0.00s)\nPASS\n", true, noTest},
		{"--- FAIL: TestX (0.00s)\n    x_test.go:1: no\nFAIL\n", false, failed},
		{"--- FAIL: TestX (0.00s)\npanic: index out of range [recovered]\n", false, panicked},
		{"fatal: x\nfatal error: all goroutines are asleep - deadlock!\n", false, panicked},
		{"panic: test timed out after 1s\nrunning tests:\n", false, timedOut},
		{"signal: killed", false, unknown},
	} {
		if got := judge(c.out, c.ok); got != c.want {
			t.Errorf("%q: %s, want %s", c.out, got, c.want)
		}
	}
}

func TestChosen(t *testing.T) {
	all := []mutant{{id: "A1", area: "a"}, {id: "A2", area: "a"}, {id: "B1", area: "b"}}
	for only, want := range map[string]int{"": 3, "a": 2, "A1": 1, "A1,b": 2, "A1,a": 2, "c": 0} {
		if got := len(chosen(all, only)); got != want {
			t.Errorf("-only %q chooses %d, want %d", only, got, want)
		}
	}
}
