// SPDX-License-Identifier: Apache-2.0

package query

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/annotate"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
	"github.com/isthmus-net/isthmus/common/analysis/complete"
	"github.com/isthmus-net/isthmus/common/analysis/lint"
)

// lintOptions are the flags of lint.
type lintOptions struct {
	cluster.Source
	platforms []string
	failOn    string
	ignored   []string
	spaces    []string
	all       bool
	output    string
}

var lintForms = []string{"text", "wide", "json", "yaml", "sarif", "github"}

func (e env) lintCommand() *cobra.Command {
	o := &lintOptions{Source: cluster.Source{WantServices: true}}
	c := &cobra.Command{
		Use:   "lint",
		Short: "Report what a platform does not enforce exactly, and what looks like a mistake",
		Long: `For every construct of every policy, report how each platform enforces it: exactly, by denying flows that it
allows (over-blocks), or not at all (refused). Also report likely mistakes: selectors that match nothing, port names
that resolve nowhere, rules that repeat others, equal priorities, and more. docs/isthmusctl.md lists all checks.

-o sarif and -o github annotate the lines of the files, for code scanning and for GitHub Actions. --ignore leaves out
checks by name.

Exit status: 0 nothing found as severe as --fail-on, 1 something found, 2 anything else.`,
		Args: cli.NoArgs,
		RunE: cli.Answering(func(c *cobra.Command, _ []string) error { return e.lint(c.Context(), o) }),
	}
	o.Register(c)
	f := c.Flags()
	f.StringSliceVar(&o.platforms, "platform", defaultPlatforms(),
		"platforms to check: linux, linux-VERSION of the kernel, hns-VERSION")
	f.StringVar(&o.failOn, "fail-on", "warning", "lowest severity that makes the exit status 1: error, warning, note or never")
	f.StringSliceVar(&o.ignored, "ignore", nil, "checks to leave out (repeatable)")
	f.StringSliceVarP(&o.spaces, "namespace", "n", nil, "list findings about policies of these namespaces only; errors of documents are always listed")
	f.BoolVarP(&o.all, "all-namespaces", "A", false, "list findings about all policies, which is the default")
	o.RegisterAllowEmpty(c)
	cli.RegisterOutput(c, &o.output, lintForms...)
	o.CompleteNamespaces(c, "namespace")
	cli.CompleteFlag(c, "ignore", slices.Sorted(maps.Keys(lint.Checks())))
	cli.CompleteFlag(c, "platform", []string{"linux", "linux-6.1", "hns-9.5", "hns-13.3", "hns-15.5"})
	cli.CompleteFlag(c, "fail-on", []string{"error", "warning", "note", "never"})
	return c
}

func (e env) lint(ctx context.Context, o *lintOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	threshold := lint.Severity(slices.Index([]string{"note", "warning", "error", "never"}, o.failOn))
	if threshold < 0 {
		return cli.Usagef("--fail-on %q: give error, warning, note or never", o.failOn)
	}
	platforms, err := parsePlatforms(o.platforms)
	if err != nil {
		return err
	}
	l, findings, err := o.read(ctx)
	if err != nil {
		return err
	}
	if err := o.known(l, findings); err != nil {
		return err
	}
	inexact, err := findInexact(ctx, l, platforms, e.Progress("lint", "nodes"))
	if err != nil {
		return err
	}
	for i := range platforms {
		platforms[i].Reported = platforms[i].reported(inexact)
	}
	r := l.Report(lintPlatforms(platforms), findings)
	o.filter(r)
	o.locate(r)
	switch o.output {
	case "json", "yaml":
		err = cli.EncodeKind(e.Stdout, o.output, "LintReport", r)
	case "sarif", "github":
		err = annotate.Write(e.Stdout, o.output, e.Version, lint.Checks(), annotations(r))
	default:
		err = writeLint(e.Stdout, r, o.output == "wide")
	}
	if err == nil && slices.ContainsFunc(r.Findings, func(f lint.Finding) bool { return f.Severity >= threshold }) {
		return cli.ErrNo
	}
	return err
}

// read loads the cluster; lint reports documents with errors as findings.
func (o *lintOptions) read(ctx context.Context) (*lint.Cluster, []lint.Finding, error) {
	if err := o.Check(); err != nil {
		return nil, nil, err
	}
	if o.Live() {
		s, p, err := o.Load(ctx)
		if err != nil {
			return nil, nil, err
		}
		l := lint.NewCluster(s, s, nil)
		l.Services = o.Services
		return l, findings(p), nil
	}
	objects, p, err := o.Read(ctx, o.Manifests...)
	if err != nil {
		return nil, nil, err
	}
	o.Places = objects.Places
	declared := objects.Snapshot()
	placed := objects
	placed.Nodes = slices.Clone(objects.Nodes)
	complete.Place(&placed)
	l := lint.NewCluster(placed.Snapshot(), declared, objects.Namespaces)
	l.Services = objects.Services
	return l, findings(p), nil
}

// findings returns the problems of reading as findings.
func findings(p cluster.Problems) []lint.Finding {
	var all []lint.Finding
	for i, b := range p.Bad {
		f := lint.Finding{Severity: lint.Error, Check: "bad-document", Message: b}
		if i < len(p.BadAt) {
			f.Place = &p.BadAt[i]
		}
		all = append(all, f)
	}
	for i, w := range p.Warnings {
		f := lint.Finding{Severity: lint.Warning, Check: "document", Message: w}
		if i < len(p.WarnedAt) {
			f.Place = &p.WarnedAt[i]
		}
		all = append(all, f)
	}
	return all
}

// writeLint prints a report as text.
func writeLint(out io.Writer, r *lint.Report, wide bool) error {
	var b strings.Builder
	counts := make(map[lint.Severity]int)
	for _, f := range r.Findings {
		counts[f.Severity]++
		fmt.Fprintln(&b, f)
	}
	if len(r.Findings) > 0 {
		b.WriteByte('\n')
	}
	writeConstructs(&b, r)
	if wide {
		for _, c := range r.Constructs {
			fmt.Fprintf(&b, "%s %s rule %d, %s: %s\n", c.Policy, c.Direction, c.Rule, c.Construct, results(c.On))
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "lint: policies=%d constructs=%d platforms=%d errors=%d warnings=%d notes=%d\n", r.Policies, len(r.Constructs),
		len(r.Platforms), counts[lint.Error], counts[lint.Warning], counts[lint.Note])
	_, err := io.WriteString(out, b.String())
	return err
}
