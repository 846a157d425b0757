// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "run:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("run", flag.ExitOnError)
	events := flags.Bool("events", false, "print what go test -json prints, as gotestsum reads it")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: go run ./test/run SUITE, at the top of the repository. The suites:")
		for _, s := range suites() {
			fmt.Fprintln(flags.Output(), "\t"+s.name)
		}
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	all := suites()
	i := slices.IndexFunc(all, func(s suite) bool { return s.name == flags.Arg(0) })
	if i < 0 || flags.NArg() != 1 {
		flags.Usage()
		return fmt.Errorf("%q is not one suite", flags.Args())
	}
	s := all[i]
	if s.summary && !*events {
		return summarise(s)
	}
	if s.fuzz {
		found, err := fuzzSteps("./...")
		if err != nil {
			return err
		}
		s.steps = found
	}
	return s.run(os.Stdout, *events)
}

// run runs all steps and writes their output to the writer, as events on request.
func (s suite) run(out io.Writer, events bool) error {
	failed := make([]error, len(s.steps))
	if !s.beside {
		for i, step := range s.steps {
			failed[i] = step.run(out, events)
		}
		return errors.Join(failed...)
	}
	var writing sync.Mutex
	var running sync.WaitGroup
	for i, step := range s.steps {
		running.Go(func() { failed[i] = step.run(&lines{to: out, writing: &writing}, events) })
	}
	running.Wait()
	return errors.Join(failed...)
}

// lines passes on whole lines, so that steps can share an output.
type lines struct {
	to      io.Writer
	writing *sync.Mutex // held while a writer of the same output writes
	rest    []byte      // begins a line
}

func (l *lines) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	end := bytes.LastIndexByte(l.rest, '\n') + 1
	l.writing.Lock()
	defer l.writing.Unlock()
	if _, err := l.to.Write(l.rest[:end]); err != nil {
		return 0, err
	}
	l.rest = l.rest[end:]
	return len(b), nil
}

// run runs the step. Its output goes to the writer, as events on request.
func (s step) run(out io.Writer, events bool) error {
	packages, err := s.list()
	if err != nil {
		return err
	}
	args := []string{"test"}
	if s.vet {
		args = []string{"vet"}
	} else if events {
		args = append(args, "-json")
	}
	args = append(append(args, packages...), s.flags...)
	if !events {
		fmt.Fprintln(out, strings.Join(append([]string{"go"}, args...), " "))
	}
	cmd := s.command(args...)
	cmd.Stdin, cmd.Stdout = os.Stdin, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s %s: %w", args[0], strings.Join(s.packages, " "), err)
	}
	return nil
}

// list returns the packages of the step. Patterns stay as they are unless it excludes
// packages.
func (s step) list() ([]string, error) {
	if len(s.except) == 0 {
		return s.packages, nil
	}
	out, err := s.command(append([]string{"list"}, s.packages...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", strings.Join(s.packages, " "), err)
	}
	listed := strings.Fields(string(out))
	for _, e := range s.except {
		n := len(listed)
		listed = slices.DeleteFunc(listed, func(p string) bool { return strings.HasSuffix(p, "/"+e) })
		if len(listed) == n {
			return nil, fmt.Errorf("suites.go excludes %s, which is not a package: remove or rename it there", e)
		}
	}
	return listed, nil
}

// command returns a call of go in the step's module, with its environment.
func (s step) command(args ...string) *exec.Cmd {
	cmd := exec.Command("go", args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), s.env...)
	cmd.Stderr = os.Stderr
	return cmd
}
