// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/daemon/pages"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
)

const testHelp = `Run unit tests of policies. Each file holds clusters, queries about flows in
them, and the expected verdicts. Files are YAML (.yaml, .yml), or JSON
Lines with one case a line; both may be compressed with gzip. The formats are
described in docs/testing-policies.md.

Each engine decides every query:
  evaluate  the reference, which reads the policies from top to bottom
  tables    the compiled tables
  maps      the entries of the BPF maps that hold the tables
  program   the BPF programs themselves, run by the kernel; needs root on Linux
  acl       the HNS ACLs for every version of HNS, under every possible meaning
            of what HNS leaves undocumented

The command prints each query with an unexpected verdict, the verdict of each
engine, and the rule that decided. The last line has the totals. -o junit
writes an XML report, -o json and -o yaml write a report for programs, and
-o github annotates the lines of the queries. The totals then go to stderr.

Exit status: 0 if every query passes, 1 if one fails or an engine was not run,
2 if the command line or a file is invalid, or there are no queries.`

// checkOptions are the flags of the command test.
type checkOptions struct {
	engines string
	jobs    int
	stored  bool
	stdin   io.Reader
	output  string
}

var testForms = []string{"text", "json", "yaml", "junit", "github"}

func (e env) testCommand() *cobra.Command {
	o := &checkOptions{}
	c := &cobra.Command{
		Use:   "test FILE...",
		Short: "Run unit tests of policies",
		Long:  testHelp,
		RunE: cli.Answering(func(c *cobra.Command, files []string) error {
			engines, err := parseEngines(o.engines)
			if err := cli.CheckOutput(o.output, testForms...); err != nil {
				return err
			}
			switch {
			case err != nil:
				return cli.Usagef("--engine %q: %w", o.engines, err)
			case len(files) == 0:
				return cli.Usagef("no tests: name one or more files, or - for stdin")
			case o.jobs < 1 || o.jobs > maxJobs:
				return cli.Usagef("--jobs %d: give 1 to %d", o.jobs, maxJobs)
			}
			o.stdin = c.InOrStdin()
			return e.check(c.Context(), files, engines, o)
		}),
	}
	f := c.Flags()
	f.StringVar(&o.engines, "engine", "evaluate,tables,maps,acl", "comma-separated engines, or all")
	f.IntVar(&o.jobs, "jobs", min(runtime.GOMAXPROCS(0), maxJobs), "cases to run at the same time")
	pages.SetDefault(f, "jobs", "the number of processors")
	cluster.RegisterStored(f, &o.stored)
	cli.RegisterOutput(c, &o.output, testForms...)
	cli.CompleteFlag(c, "engine", append(engineNames(), "all"))
	return c
}

const maxJobs = 64

var errBadTests = errors.New("some tests could not run: fix the files that are named above")

// totals holds the numbers of the last line. A query passes if every engine that ran returns
// the expected verdict.
type totals struct {
	cases, queries, pass, fail int
	impossible, bad            int
}

// check runs the tests of the files.
func (e env) check(ctx context.Context, files, engines []string, o *checkOptions) error {
	program, missing := e.prepareProgram(&engines, o.output)
	if program != nil {
		defer program.Close()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cases, judged := make(chan *testCase), make(chan *outcome)
	go func() {
		defer close(cases)
		r := reader{ctx: ctx, out: cases, stdin: o.stdin}
		for _, f := range files {
			r.file(f)
		}
	}()
	var workers sync.WaitGroup
	for range o.jobs {
		j := &judge{engines: engines, program: program, reading: manifests.Reading{Limits: manifests.DefaultLimits(), Stored: o.stored}, keep: o.output != "text"}
		program = nil // each worker has its own; the first takes this one
		workers.Go(func() {
			defer j.close()
			for c := range cases {
				judged <- j.judge(c)
			}
		})
	}
	go func() {
		workers.Wait()
		close(judged)
	}()
	p := newPrinter(o.output, e.Stdout, e.Stderr)
	sum, err := e.report(judged, p)
	if sum.impossible > 0 {
		fmt.Fprintf(e.Stderr, "isthmusctl: %d queries describe packets that cannot exist: engines that need packets skipped them\n", sum.impossible)
	}
	if endErr := p.end(sum, len(engines)); err == nil {
		err = endErr
	}
	fmt.Fprintf(p.totals, "test: cases=%d queries=%d engines=%d pass=%d fail=%d\n", sum.cases, sum.queries, len(engines), sum.pass, sum.fail)
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case sum.bad > 0:
		return errBadTests
	case sum.queries == 0:
		return errors.New("no queries in the files: nothing was tested")
	case sum.fail > 0 || missing:
		return cli.ErrNo
	}
	return nil
}

// prepareProgram removes the engine program from the list if it cannot run here, prints the
// reason, and reports that it is missing.
func (e env) prepareProgram(engines *[]string, form string) (program *engine.PerNode, missing bool) {
	var rest []string
	for _, name := range *engines {
		if name != "program" {
			rest = append(rest, name)
			continue
		}
		program = newProgram()
		if err := program.Ready(); err != nil {
			to := e.Stdout
			if form != "text" {
				to = e.Stderr
			}
			fmt.Fprintf(to, "program: not run: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
			program, missing = nil, true
			continue
		}
		rest = append(rest, name)
	}
	*engines = rest
	return program, missing
}

// report prints the outcomes in the order of the files and adds up the totals.
func (e env) report(judged <-chan *outcome, p *printer) (totals, error) {
	var sum totals
	var failed error
	waiting := make(map[int]*outcome)
	next := 0
	tick := time.NewTicker(cli.ProgressEvery)
	defer tick.Stop()
	started := time.Now()
	for {
		select {
		case <-tick.C:
			fmt.Fprintf(e.Stderr, "test: %d cases, %d queries after %s\n", sum.cases, sum.queries, time.Since(started).Round(time.Second))
		case o, ok := <-judged:
			if !ok {
				return sum, failed
			}
			waiting[o.number] = o
			for waiting[next] != nil {
				if err := sum.add(waiting[next], p); err != nil && failed == nil {
					failed = err
				}
				delete(waiting, next)
				next++
			}
		}
	}
}

// add counts an outcome and prints its warnings and failures.
func (t *totals) add(o *outcome, p *printer) error {
	t.queries += o.queries
	t.fail += o.failed
	t.pass += o.queries - o.failed
	t.impossible += o.impossible
	if o.counts {
		t.cases++
	}
	for _, w := range o.warnings {
		fmt.Fprintf(p.stderr, "isthmusctl: %s\n", w)
	}
	if o.bad != nil {
		t.bad++
		fmt.Fprintf(p.stderr, "isthmusctl: %s\n", strings.ReplaceAll(o.bad.Error(), "\n", "; "))
	}
	return p.print(o)
}
