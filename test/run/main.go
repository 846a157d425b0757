// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
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
	var failed []error
	for _, step := range s.steps {
		if err := step.run(*events); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// run runs the step. Its output goes to standard output, as events on request.
func (s step) run(events bool) error {
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
		fmt.Println(strings.Join(append([]string{"go"}, args...), " "))
	}
	cmd := s.command(args...)
	cmd.Stdin, cmd.Stdout = os.Stdin, os.Stdout
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
