// SPDX-License-Identifier: Apache-2.0

package test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// TestActionlint has actionlint check the workflows.
func TestActionlint(t *testing.T) {
	if testing.Short() {
		t.Skip("builds actionlint")
	}
	built := exec.Command("go", "-C", "tools", "tool", "-n", "actionlint")
	built.Env = append(os.Environ(), "GOFLAGS=")
	path, err := built.Output()
	if err != nil {
		t.Fatalf("build actionlint: %v", err)
	}
	lint := exec.Command(strings.TrimSpace(string(path)), "-no-color", "-oneline")
	lint.Dir = ".."
	if out, err := lint.CombinedOutput(); err != nil {
		t.Errorf("actionlint: %v\n%s", err, out)
	}
}

var (
	usesAction  = regexp.MustCompile(`uses: (\S+)`)
	pinned      = regexp.MustCompile(`^(?:actions/[a-z-]+@(?:v[0-9]+|[0-9a-f]{40})|[\w.-]+/[\w./-]+@[0-9a-f]{40})$`)
	makeCall    = regexp.MustCompile(`\bmake ((?:[a-z0-9-]+ ?)+)`)
	yamlComment = regexp.MustCompile(`(?m)^\s*#.*$`)
	checkFile   = regexp.MustCompile(`(?:\./|\brun: )((?:\.ci|deploy|cmd|test)/[\w./-]+)`)
)

// TestWorkflows checks points that actionlint does not cover: rights are limited, no secret is read, actions are
// pinned, and the targets, packages and scripts that workflows run exist.
func TestWorkflows(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	called := 0
	for _, f := range sources(t, ".yaml") {
		if !strings.HasPrefix(f.name, ".github/workflows/") {
			continue
		}
		if !strings.Contains(f.text, "\npermissions:\n  contents: read\n") {
			t.Errorf("%s does not limit the rights of its token to reading", f.name)
		}
		if strings.Contains(f.text, "pull_request_target") {
			t.Errorf("%s runs code of others with rights of this repository", f.name)
		}
		if strings.Contains(f.text, "secrets.") {
			t.Errorf("%s reads a secret: the signing key stays with the maintainers, and nothing else is secret", f.name)
		}
		if n, all := strings.Count(f.text, "timeout-minutes: "), strings.Count(f.text, "    runs-on: "); n != all {
			t.Errorf("%s: %d of %d jobs have a timeout", f.name, n, all)
		}
		for _, m := range usesAction.FindAllStringSubmatch(f.text, -1) {
			if !pinned.MatchString(m[1]) {
				t.Errorf("%s: pin %s to a major version (actions/) or to a hash", f.name, m[1])
			}
		}
		for _, m := range makeCall.FindAllStringSubmatch(yamlComment.ReplaceAllString(f.text, ""), -1) {
			for target := range strings.FieldsSeq(m[1]) {
				called++
				if !strings.Contains(string(makefile), "\n"+target+":") {
					t.Errorf("%s runs make %s, which the Makefile does not have", f.name, target)
				}
			}
		}
		for _, m := range checkFile.FindAllStringSubmatch(f.text, -1) {
			called++
			if _, err := os.Stat("../" + m[1]); err != nil {
				t.Errorf("%s names %s: %v", f.name, m[1], err)
			}
		}
	}
	if called < 8 {
		t.Errorf("%d targets, packages and scripts found in workflows, want 8 or more", called)
	}
}

// TestWindowsPaths checks that a change of what windows.yaml builds and tests starts it.
func TestWindowsPaths(t *testing.T) {
	text, err := os.ReadFile("../.github/workflows/windows.yaml")
	if err != nil {
		t.Fatal(err)
	}
	used := regexp.MustCompile(` \./([a-z]+)/`).FindAllSubmatch(text, -1)
	if len(used) < 6 {
		t.Fatalf("%d paths found, want 6 or more", len(used))
	}
	for _, m := range used {
		if top := string(m[1]); !strings.Contains(string(text), `      - "`+top+`/`) {
			t.Errorf("windows.yaml uses ./%s, and no path of pull_request begins with it", top)
		}
	}
}
