// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// fate is the result of running the tests on a mutant.
type fate string

const (
	killed     fate = "killed"
	survived   fate = "survived"
	equivalent fate = "equivalent"
	broken     fate = "broken" // it does not apply or compile, or its test fails without it
)

// campaign tries a list of mutants.
type campaign struct {
	*workshop
	options
	mutants []mutant
	clean   map[command]*sync.Once // runs of the tests without any mutant
	cleanly map[command]error
	asRoot  sync.Mutex // tests with root share the machine's network: one at a time
	mu      sync.Mutex
	fates   map[fate]int
	done    int
}

func newCampaign(w *workshop, all []mutant, o options) *campaign {
	c := &campaign{workshop: w, options: o, mutants: all, clean: make(map[command]*sync.Once),
		cleanly: make(map[command]error), fates: make(map[fate]int)}
	for _, m := range all {
		for _, r := range m.runs {
			c.clean[r] = &sync.Once{}
		}
	}
	return c
}

// run tries every mutant and prints a line for each, then the summary. It
// returns an error if one survives or is broken.
func (c *campaign) run(ctx context.Context) error {
	work := make(chan *mutant)
	var wg sync.WaitGroup
	for range max(1, c.jobs) {
		wg.Go(func() {
			for m := range work {
				start := time.Now()
				f, why := c.try(ctx, m)
				c.tell(m, f, why, time.Since(start))
			}
		})
	}
	for i := range c.mutants {
		if ctx.Err() == nil {
			work <- &c.mutants[i]
		}
	}
	close(work)
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !c.check {
		fmt.Printf("mutants: planted=%d killed=%d survived=%d equivalent=%d\n",
			c.fates[killed]+c.fates[survived]+c.fates[equivalent], c.fates[killed], c.fates[survived], c.fates[equivalent])
	}
	if n := c.fates[broken]; n > 0 {
		return fmt.Errorf("%d mutants could not be tried: bring their text in test/mutants up to date", n)
	}
	if n := c.fates[survived]; n > 0 {
		return fmt.Errorf("%d mutants survive: write the tests that notice them", n)
	}
	return nil
}

func (c *campaign) tell(m *mutant, f fate, why string, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fates[f]++
	c.done++
	fmt.Printf("%3d/%d %-10s %-6s %-16s %5.1fs  %s: %s\n", c.done, len(c.mutants), f, m.id, m.area, took.Seconds(), m.what, why)
}

// try plants one mutant and runs its tests until one passes.
func (c *campaign) try(ctx context.Context, m *mutant) (fate, string) {
	changed, err := m.apply(os.DirFS(c.root))
	if err != nil {
		return broken, err.Error()
	}
	dir := filepath.Join(c.scratch, m.id)
	defer os.RemoveAll(dir)
	overlay, err := c.plant(ctx, dir, changed)
	if err != nil {
		return broken, err.Error()
	}
	if c.check || m.equivalent != "" {
		if err := c.compileAll(ctx, overlay, changed); err != nil {
			return broken, err.Error()
		}
		return equivalent, cmp.Or(m.equivalent, "compiles")
	}
	for i, r := range m.runs {
		if f, why := c.tryOne(ctx, m, r, overlay, filepath.Join(dir, fmt.Sprintf("%d.test", i))); f != killed {
			return f, why
		}
	}
	return killed, m.runs[0].String()
}

// tryOne runs one of the tests that must notice a mutant.
func (c *campaign) tryOne(ctx context.Context, m *mutant, r command, overlay, binary string) (fate, string) {
	if r.root && os.Getuid() != 0 {
		return broken, r.String() + " needs root"
	}
	if err := c.passesCleanly(ctx, r); err != nil {
		return broken, err.Error()
	}
	if err := c.build(ctx, overlay, r.pkg, binary); err != nil {
		return broken, err.Error()
	}
	got, out := c.runTest(ctx, overlay, binary, r)
	if c.verbose {
		fmt.Println(out)
	}
	switch {
	case got == passed:
		return survived, r.String() + " passes"
	case got == failed, got == outcome(m.ends):
		return killed, ""
	}
	return broken, fmt.Sprintf("%s %s, which is not an assertion: %s", r, got, lastLines(out))
}

func (c *campaign) runTest(ctx context.Context, overlay, binary string, r command) (outcome, string) {
	if r.root {
		c.asRoot.Lock()
		defer c.asRoot.Unlock()
	}
	return c.workshop.run(ctx, overlay, binary, r)
}

// passesCleanly runs a test without any mutant, once: a test that fails anyway,
// or runs nothing, notices no mistake.
func (c *campaign) passesCleanly(ctx context.Context, r command) error {
	c.clean[r].Do(func() {
		dir, err := os.MkdirTemp(c.scratch, "clean-")
		if err == nil {
			defer os.RemoveAll(dir)
			err = c.build(ctx, "", r.pkg, filepath.Join(dir, "clean.test"))
		}
		if err == nil {
			if got, out := c.runTest(ctx, "", filepath.Join(dir, "clean.test"), r); got != passed {
				err = fmt.Errorf("without the mutant %s %s: %s", r, got, lastLines(out))
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.cleanly[r] = err
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cleanly[r]
}

// compileAll compiles the packages of the changed files, for the systems that
// they are for.
func (c *campaign) compileAll(ctx context.Context, overlay string, changed map[string]string) error {
	var errs []error
	for name := range changed {
		if strings.HasSuffix(name, ".go") {
			errs = append(errs, c.compile(ctx, overlay, "./"+filepath.Dir(name), strings.HasSuffix(name, "_windows.go")))
		}
	}
	return errors.Join(errs...)
}

// lastLines returns the end of a text, on one line.
func lastLines(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-6):], " | ")
}
