// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

func main() { os.Exit(run()) }

func run() int {
	only := flag.String("only", "", "ids or areas, separated by commas; all without it")
	jobs := flag.Int("j", 2, "how many mutants to try at a time")
	timeout := flag.Duration("timeout", 5*time.Minute, "how long one test may take")
	check := flag.Bool("check", false, "only see whether every mutant still applies and compiles")
	verbose := flag.Bool("v", false, "print what the tests print")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := try(ctx, options{only: *only, jobs: *jobs, timeout: *timeout, check: *check, verbose: *verbose}); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		return 1
	}
	return 0
}

type options struct {
	only           string
	jobs           int
	timeout        time.Duration
	check, verbose bool
}

// try plants the mutants of the checkout that the program runs in.
func try(ctx context.Context, o options) error {
	root, err := checkout()
	if err != nil {
		return err
	}
	all, err := readLists(os.DirFS(filepath.Join(root, "test/mutants")))
	if err != nil {
		return err
	}
	if all = chosen(all, o.only); len(all) == 0 {
		return fmt.Errorf("-only %s names no mutant and no area", o.only)
	}
	scratch, err := os.MkdirTemp("", "isthmus-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	c := newCampaign(&workshop{root: root, scratch: scratch, timeout: o.timeout}, all, o)
	return c.run(ctx)
}

// checkout finds the top of the repository above the working directory.
func checkout() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "test/mutants/doc.go")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("%s is not in a checkout of Isthmus", dir)
		}
	}
}

// chosen returns the mutants that a list of ids and areas names.
func chosen(all []mutant, only string) []mutant {
	if only == "" {
		return all
	}
	var some []mutant
	for _, m := range all {
		for name := range strings.SplitSeq(only, ",") {
			if m.id == name || m.area == name {
				some = append(some, m)
				break
			}
		}
	}
	return some
}
