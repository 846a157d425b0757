// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// event is a line of go test -json (go doc test2json).
type event struct {
	Action, Package, Test, Output string
}

// totals counts the results of packages, and of tests and subtests.
type totals struct {
	packages, tests, passed, failed, skipped int
	broken                                   int // packages that failed, also without a failed test
}

func (t totals) String() string {
	return fmt.Sprintf("test: packages=%d tests=%d passed=%d failed=%d skipped=%d", t.packages, t.tests, t.passed, t.failed, t.skipped)
}

// count reads events up to their end.
func count(events io.Reader) (totals, error) {
	var t totals
	for d := json.NewDecoder(events); ; {
		var e event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return t, nil
		} else if err != nil {
			return t, fmt.Errorf("read go test -json: %w", err)
		}
		if e.Action != "pass" && e.Action != "fail" && e.Action != "skip" {
			continue
		}
		if e.Test == "" {
			t.packages++
			if e.Action == "fail" {
				t.broken++
			}
			continue
		}
		t.tests++
		switch e.Action {
		case "pass":
			t.passed++
		case "fail":
			t.failed++
		case "skip":
			t.skipped++
		}
	}
}

// summarise runs a suite under gotestsum, and prints the slowest tests, the reports and
// the totals. It returns an error if a package or test fails, or no test ran.
func summarise(s suite) error {
	for _, r := range s.reports {
		if err := r.clear(); err != nil {
			return err
		}
	}
	gotestsum, err := tool("gotestsum")
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	eventsFile := filepath.Join("build", "test-"+s.name+".json")
	failed := attached(gotestsum, "--raw-command", "--format=pkgname", "--format-icons=text", "--format-hide-empty-pkg",
		"--jsonfile="+eventsFile, "--", self, "-events", s.name)

	fmt.Println("\n=== Slowest")
	if err := attached(gotestsum, "tool", "slowest", "--jsonfile="+eventsFile, "--num=15"); err != nil {
		return err
	}
	events, err := os.Open(eventsFile)
	if err != nil {
		return err
	}
	defer events.Close()
	t, err := count(events)
	if err != nil {
		return fmt.Errorf("%s: %w", eventsFile, err)
	}
	fmt.Println()
	for _, r := range s.reports {
		fmt.Println(r.text())
	}
	fmt.Println(t)
	switch {
	case t.broken > 0 || t.failed > 0:
		return fmt.Errorf("%d packages and %d tests failed: see above", t.broken, t.failed)
	case failed != nil:
		return fmt.Errorf("run gotestsum: %w", failed)
	case t.tests == 0:
		return errors.New("no test ran")
	}
	return nil
}

// clear removes what an earlier run left.
func (r report) clear() error {
	dir := filepath.Dir(r.files)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.MkdirAll(dir, 0o755)
}

func (r report) text() string {
	files, err := filepath.Glob(r.files)
	if err != nil || len(files) == 0 {
		return r.prefix + "no report: the tests that write it did not end"
	}
	var words []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return r.prefix + err.Error()
		}
		words = append(words, strings.TrimSpace(string(b)))
	}
	return r.prefix + strings.Join(words, " ")
}

// tool builds a tool of test/tools, if it is not in the build cache, and returns its
// path.
func tool(name string) (string, error) {
	cmd := exec.Command("go", "-C", "test/tools", "tool", "-n", name)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("build %s of test/tools: %w", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// attached runs a command with the terminal of this one.
func attached(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}
