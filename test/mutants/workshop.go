// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// outcome is the result of a test.
type outcome string

const (
	passed   outcome = "passed"
	failed   outcome = "failed" // by an assertion
	panicked outcome = "panic"
	timedOut outcome = "timeout"
	unknown  outcome = "ended otherwise"
	noTest   outcome = "ran no test, or skipped one"
)

// workshop builds and runs tests of the sources with some files replaced.
type workshop struct {
	root    string // of the checkout
	scratch string
	timeout time.Duration
}

// plant writes the changed files to a directory and returns the path of an
// overlay, as go build -overlay takes it.
func (w *workshop) plant(ctx context.Context, dir string, changed map[string]string) (string, error) {
	replace := make(map[string]string)
	objects := false
	for name, text := range changed {
		to := filepath.Join(dir, "files", name)
		if err := writeFile(to, text); err != nil {
			return "", err
		}
		replace[filepath.Join(w.root, name)] = to
		objects = objects || strings.HasPrefix(name, "bpf/")
	}
	if objects {
		if err := w.compileBPF(ctx, dir, changed, replace); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o644)
}

// compileBPF regenerates the BPF objects from the changed sources in a copy, and
// adds them to the overlay.
func (w *workshop) compileBPF(ctx context.Context, dir string, changed, replace map[string]string) error {
	tree := filepath.Join(dir, "tree")
	for _, part := range []string{"bpf", "linux/bpfobj"} {
		if err := os.CopyFS(filepath.Join(tree, part), os.DirFS(filepath.Join(w.root, part))); err != nil {
			return err
		}
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join(w.root, name))
		if err != nil {
			return err
		}
		if err := writeFile(filepath.Join(tree, name), string(b)); err != nil {
			return err
		}
	}
	for name, text := range changed {
		if err := writeFile(filepath.Join(tree, name), text); err != nil {
			return err
		}
	}
	machine, err := exec.CommandContext(ctx, "gcc", "-print-multiarch").Output()
	if err != nil {
		return fmt.Errorf("find the system's headers: %w", err)
	}
	cmd := exec.CommandContext(ctx, "go", "generate", "./linux/bpfobj")
	cmd.Dir = tree
	cmd.Env = append(os.Environ(), "BPF2GO_CFLAGS=-I/usr/include/"+strings.TrimSpace(string(machine)))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile bpf/: %w\n%s", err, out)
	}
	made, err := filepath.Glob(filepath.Join(tree, "linux/bpfobj/*_bpfel.*"))
	for _, path := range made {
		name, _ := filepath.Rel(tree, path)
		replace[filepath.Join(w.root, name)] = path
	}
	return err
}

func writeFile(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// quick makes compiling and linking cheaper: no inlining, nothing for debuggers.
// Most of a campaign's time goes into them, for every package above the changed one.
// Packages of other modules keep their flags, so that the build cache has them.
var quick = []string{"-gcflags=./...=-l -dwarf=false", "-ldflags=-w"}

// build compiles the tests of a package. An overlay of "" is the checkout.
func (w *workshop) build(ctx context.Context, overlay, pkg, binary string) error {
	args := append([]string{"test", "-c", "-vet=off", "-o", binary}, quick...)
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir = w.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	if _, err := os.Stat(binary); err != nil {
		return fmt.Errorf("build %s: the package has no tests", pkg)
	}
	return nil
}

// run runs a compiled test in the directory of its package. Programs that it
// builds get the overlay, too.
func (w *workshop) run(ctx context.Context, overlay, binary string, c command) (outcome, string) {
	args := []string{"-test.failfast", "-test.v", "-test.timeout", w.timeout.String(), "-test.run", c.run}
	if c.short {
		args = append(args, "-test.short")
	}
	ctx, cancel := context.WithTimeout(ctx, w.timeout+30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = filepath.Join(w.root, c.pkg)
	cmd.Env = os.Environ()
	if overlay != "" {
		cmd.Env = append(cmd.Env, "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay))
	}
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	return judge(string(out), err == nil), string(out)
}

// judge says how a test ended by what it printed.
func judge(out string, ok bool) outcome {
	has := func(text string) bool { return strings.Contains(out, text) }
	switch {
	case ok && (!has("--- PASS: ") || has("--- SKIP: ")): // what skips notices nothing
		return noTest
	case ok:
		return passed
	case has("panic: test timed out after"):
		return timedOut
	case has("\npanic: ") || has("\nfatal error: ") || strings.HasPrefix(out, "panic: "):
		return panicked
	case has("--- FAIL: "):
		return failed
	}
	return unknown
}

// compile compiles a package, and nothing more.
func (w *workshop) compile(ctx context.Context, overlay, pkg string, windows bool) error {
	args := append([]string{"build", "-overlay", overlay, "-o", os.DevNull}, quick...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir, cmd.Env = w.root, os.Environ()
	if windows {
		cmd.Env = append(cmd.Env, "GOOS=windows", "CGO_ENABLED=0")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return nil
}
