// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// lintOptions are the flags of lint.
type lintOptions struct {
	source
	platforms []string
	failOn    string
	output    string
}

func (e env) lintCommand() *cobra.Command {
	o := &lintOptions{}
	c := &cobra.Command{
		Use:   "lint",
		Short: "Say what is not enforced exactly, on which platform, and what looks like a mistake",
		Long: `Look at every construct of every policy for every platform: is it enforced exactly, are flows denied that
it allows (over-blocks), or is it refused? And look for what is likely not meant: selectors that match nothing, names
of ports that resolve nowhere, rules that repeat others, equal priorities, and more; docs/isthmusctl.md lists all
checks.

Exit status: 0 nothing found as severe as --fail-on, 1 something found, 2 anything else.`,
		Args: noArgs,
		RunE: answering(func(c *cobra.Command, _ []string) error { return e.lint(c.Context(), o) }),
	}
	o.register(c)
	f := c.Flags()
	f.StringSliceVar(&o.platforms, "platform", []string{"linux", "hns-9.5", "hns-13.3", "hns-15.5"},
		"platforms to look at: linux, linux-VERSION of the kernel, hns-VERSION")
	f.StringVar(&o.failOn, "fail-on", "warning", "error, warning, note or never: what makes the exit status 1")
	registerOutput(c, &o.output, "text", "wide", "json")
	return c
}

// severity orders findings.
type severity int

const (
	note severity = iota
	warning
	failure
	never
)

// String returns the word that users give and see.
func (s severity) String() string { return [...]string{"note", "warning", "error", "never"}[s] }

// MarshalText writes the word.
func (s severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// finding is one thing that lint has to say.
type finding struct {
	Severity  severity `json:"severity"`
	Check     string   `json:"check"`
	Policy    string   `json:"policy,omitempty"`
	Direction string   `json:"direction,omitempty"`
	Rule      *int     `json:"rule,omitempty"`
	// Platforms are those that it is about; none means all.
	Platforms []string `json:"platforms,omitempty"`
	Message   string   `json:"message"`
}

// String says everything in one line.
func (f finding) String() string {
	where := f.Policy
	if f.Rule != nil {
		where += fmt.Sprintf(" %s rule %d", f.Direction, *f.Rule)
	} else if f.Direction != "" {
		where += " " + f.Direction
	}
	if len(f.Platforms) > 0 {
		where += " on " + strings.Join(f.Platforms, ", ")
	}
	if where = strings.TrimSpace(where); where != "" {
		where += ": "
	}
	return fmt.Sprintf("%-7s %s%s: %s", f.Severity, where, f.Check, f.Message)
}

func compareFindings(a, b finding) int {
	rule := func(f finding) int {
		if f.Rule == nil {
			return -1
		}
		return *f.Rule
	}
	return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Direction, b.Direction),
		cmp.Compare(rule(a), rule(b)), cmp.Compare(a.Check, b.Check), slices.Compare(a.Platforms, b.Platforms), cmp.Compare(a.Message, b.Message))
}

// linted is what the checks look at.
type linted struct {
	// snapshot has nodes and addresses for all pods; declared has only what the
	// manifests say.
	snapshot, declared *model.Snapshot
	// namespaces are those that an object describes; nil if none is.
	namespaces map[string]bool
	policies   []*model.Policy
	services   []*model.Service
	// pods stand each for all pods that policies apply to with one namespace,
	// one set of labels, port names and system, and have the addresses of all of
	// them.
	pods []*model.Pod
	// os is the system that the pods of each run on.
	os map[*model.Pod]model.OS
}

func newLinted(snapshot, declared *model.Snapshot, namespaces []*model.Namespace) *linted {
	l := &linted{snapshot: snapshot, declared: declared, policies: snapshot.SortedPolicies()}
	for _, ns := range namespaces {
		if l.namespaces == nil {
			l.namespaces = make(map[string]bool)
		}
		l.namespaces[ns.Name] = true
	}
	l.join()
	return l
}

// join makes one pod of all that selectors cannot tell apart.
func (l *linted) join() {
	type kind struct {
		namespace string
		labels    model.Labels
		ports     string
		os        model.OS
	}
	found := make(map[kind]*model.Pod)
	l.os = make(map[*model.Pod]model.OS)
	for _, p := range l.snapshot.Pods.All() {
		if !p.Policed() {
			continue
		}
		k := kind{p.Namespace, p.Labels, fmt.Sprint(p.Ports), osOf(l.snapshot, p)}
		if found[k] == nil {
			one := *p
			one.IPs = nil
			found[k] = &one
			l.pods = append(l.pods, &one)
			l.os[&one] = k.os
		}
		found[k].IPs = append(found[k].IPs, p.IPs...)
		if p.PodID.Compare(found[k].PodID) < 0 {
			found[k].PodID = p.PodID
		}
	}
	slices.SortFunc(l.pods, func(a, b *model.Pod) int { return a.PodID.Compare(b.PodID) })
}

func (e env) lint(ctx context.Context, o *lintOptions) error {
	if err := checkOutput(o.output, "text", "wide", "json"); err != nil {
		return err
	}
	threshold := severity(slices.Index([]string{"note", "warning", "error", "never"}, o.failOn))
	if threshold < 0 {
		return usageError{fmt.Errorf("--fail-on %q: give error, warning, note or never", o.failOn)}
	}
	platforms, err := parsePlatforms(o.platforms)
	if err != nil {
		return err
	}
	l, findings, err := o.read(ctx)
	if err != nil {
		return err
	}
	inexact, err := l.inexact(ctx, platforms, e.progress("lint", "nodes"))
	if err != nil {
		return err
	}
	r := l.report(platforms, inexact, findings)
	if o.output == "json" {
		err = encodeJSON(e.stdout, r)
	} else {
		err = r.write(e.stdout, o.output == "wide")
	}
	if err == nil && slices.ContainsFunc(r.Findings, func(f finding) bool { return f.Severity >= threshold }) {
		return errNo
	}
	return err
}

// read loads the cluster; documents with errors are findings here.
func (o *lintOptions) read(ctx context.Context) (*linted, []finding, error) {
	if err := o.check(); err != nil {
		return nil, nil, err
	}
	if o.kubeconfig != "" {
		s, p, err := o.load(ctx)
		if err != nil {
			return nil, nil, err
		}
		return newLinted(s, s, nil), p.findings(), nil
	}
	objects, p, err := o.readDir(ctx, o.manifests)
	if err != nil {
		return nil, nil, err
	}
	declared := objects.Snapshot()
	placed := objects
	placed.Nodes = slices.Clone(objects.Nodes)
	place(&placed)
	l := newLinted(placed.Snapshot(), declared, objects.Namespaces)
	l.services = objects.Services
	return l, p.findings(), nil
}

func (p problems) findings() []finding {
	var all []finding
	for _, b := range p.bad {
		all = append(all, finding{Severity: failure, Check: "bad-document", Message: b})
	}
	for _, w := range p.warnings {
		all = append(all, finding{Severity: warning, Check: "document", Message: w})
	}
	return all
}

// lintReport is the answer, as it is printed in JSON.
type lintReport struct {
	Policies   int               `json:"policies"`
	Findings   []finding         `json:"findings"`
	Platforms  []string          `json:"platforms"`
	Constructs []constructReport `json:"constructs"`
}

// constructReport is one construct of one rule on every platform.
type constructReport struct {
	Policy    string        `json:"policy"`
	Direction string        `json:"direction"`
	Rule      int           `json:"rule"`
	Construct string        `json:"construct"`
	On        []exactnessOn `json:"on"`
	use       policy.Use    // for joining
}

type exactnessOn struct {
	Platform string `json:"platform"`
	Result   string `json:"result"`
	Reason   string `json:"reason,omitempty"`
}

// report runs all checks.
func (l *linted) report(platforms []platform, inexact *inexactness, findings []finding) *lintReport {
	r := &lintReport{Policies: len(l.policies), Findings: append([]finding{}, findings...), Constructs: []constructReport{}}
	for _, p := range platforms {
		r.Platforms = append(r.Platforms, p.name)
	}
	r.addEnforceability(l, platforms, inexact)
	for _, check := range checks() {
		r.Findings = append(r.Findings, check(l)...)
	}
	slices.SortFunc(r.Findings, compareFindings)
	r.Findings = slices.CompactFunc(r.Findings, func(a, b finding) bool { return compareFindings(a, b) == 0 })
	return r
}

func (r *lintReport) write(out io.Writer, wide bool) error {
	var b strings.Builder
	counts := make(map[severity]int)
	for _, f := range r.Findings {
		counts[f.Severity]++
		fmt.Fprintln(&b, f)
	}
	if len(r.Findings) > 0 {
		b.WriteByte('\n')
	}
	r.writeTable(&b)
	if wide {
		for _, c := range r.Constructs {
			fmt.Fprintf(&b, "%s %s rule %d, %s: %s\n", c.Policy, c.Direction, c.Rule, c.Construct, c.results())
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "lint: policies=%d constructs=%d platforms=%d errors=%d warnings=%d notes=%d\n", r.Policies, len(r.Constructs),
		len(r.Platforms), counts[failure], counts[warning], counts[note])
	_, err := io.WriteString(out, b.String())
	return err
}
