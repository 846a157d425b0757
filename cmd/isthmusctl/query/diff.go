// SPDX-License-Identifier: Apache-2.0

package query

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
	"github.com/isthmus-net/isthmus/common/analysis/complete"
	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/model"
)

// diffOptions are the flags of diff.
type diffOptions struct {
	cluster.Source
	output string
	limit  int
}

func (e env) diffCommand() *cobra.Command {
	o := &diffOptions{}
	c := &cobra.Command{
		Use:   "diff DIR_A DIR_B",
		Short: "List every verdict that differs between two directories of manifests",
		Long: `List every flow whose verdict differs between the manifests of DIR_A and of DIR_B. The answer consists of sets
of pods, nodes, address ranges and ports. It is complete, without sampling, and separate for each operating system
that enforces the difference. Pods that only one directory has are listed, but not compared.

If a policy differs and selects no pod of its directory, the command adds placeholder pods that match its selectors to
both directories. So it also compares directories that hold only policies. --witnesses=false turns that off.

Exit status: 0 no verdict differs, 1 some do, 2 the command line or a manifest is invalid, a directory is empty, or no
pod is in both.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 2 {
				return cli.Usagef("give two directories of manifests: see %s --help", c.CommandPath())
			}
			return nil
		},
		RunE: cli.Answering(func(c *cobra.Command, args []string) error {
			return o.Complete(e.diff(c.Context(), o, args[0], args[1]))
		}),
	}
	o.RegisterReading(c)
	c.Flags().BoolVar(&o.Placeholders, "witnesses", true, "add placeholder pods for policies that differ and select none, to compare their effect")
	cli.RegisterOutput(c, &o.output, "text", "json", "yaml")
	c.Flags().IntVar(&o.limit, "limit", 200, "maximum number of differences that text shows for each system; 0 means all")
	return c
}

// assume adds placeholder pods for policies that select none, and reports them.
func (o *diffOptions) assume(was, is *model.Objects) []string {
	if !o.Placeholders {
		return nil
	}
	a := complete.Assume(was, is)
	if len(a.Pods) == 0 {
		return nil
	}
	said := []string{fmt.Sprintf("%d pods for %d policies that differ and select none: %s", len(a.Pods), a.Policies, cli.Shorten(a.Pods, 5))}
	if a.Cut {
		said = append(said, fmt.Sprintf("the limit is %d pods: other selectors of these policies are not compared; add pods to the manifests", complete.MaxAssumed))
	}
	return said
}

func (e env) diff(ctx context.Context, o *diffOptions, a, b string) error {
	if err := cli.CheckOutput(o.output, "text", "json", "yaml"); err != nil {
		return err
	}
	if o.limit < 0 {
		return cli.Usagef("--limit %d: give 0 or more", o.limit)
	}
	was, problems, err := o.Read(ctx, a)
	if err == nil {
		err = o.Report(e.Stderr, problems)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", a, err)
	}
	is, problems, err := o.Read(ctx, b)
	if err == nil {
		problems.Assumed = append(o.assume(&was, &is), cluster.Assumptions(complete.Place(&was, &is))...)
		err = o.Report(e.Stderr, problems)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", b, err)
	}
	p := reach.New(was.Snapshot(), is.Snapshot())
	p.Progress = e.Progress("diff", "groups")
	e.warnCrowded(p)
	r := compareVersions(p)
	r.Policies = reach.Differing(was.Policies, is.Policies)
	if o.output == "json" || o.output == "yaml" {
		err = cli.Encode(e.Stdout, o.output, r)
	} else {
		err = r.write(e.Stdout, o.limit)
	}
	switch {
	case err != nil:
		return err
	case len(r.Changes) > 0:
		return cli.ErrNo
	case !shared(was.Pods, is.Pods) && len(r.OnlyA)+len(r.OnlyB)+len(r.Policies) > 0:
		return fmt.Errorf("nothing to compare: no pod is in both %s and %s", a, b)
	}
	return nil
}

// shared reports whether two clusters have a pod in common.
func shared(a, b []*model.Pod) bool {
	known := make(map[model.PodID]bool)
	for _, p := range a {
		known[p.PodID] = true
	}
	return slices.ContainsFunc(b, func(p *model.Pod) bool { return known[p.PodID] })
}

// The JSON form of the answer.
type (
	diffReport struct {
		Changes []diffChange `json:"changes"`
		// OnlyA and OnlyB are the pods that are not compared.
		OnlyA []string `json:"pods_only_in_a"`
		OnlyB []string `json:"pods_only_in_b"`
		// Policies are those that only one version has, or that differ.
		Policies []string `json:"policies_that_differ"`
		// OverBlocked lists where a node may deny more than the policies do.
		OverBlocked []string `json:"over_blocked"`
	}
	// diffChange reports that flows from every member of From to every member of To on all
	// of Ports changed, except for those of a pod to itself. From and To name every end. The
	// other members also hold the ends that are no pods.
	diffChange struct {
		From       []string        `json:"from"`
		FromNodes  []nodeEndReport `json:"from_nodes,omitempty"`
		FromRanges []rangeReport   `json:"from_ranges,omitempty"`
		To         []string        `json:"to"`
		ToNodes    []nodeEndReport `json:"to_nodes,omitempty"`
		ToRanges   []rangeReport   `json:"to_ranges,omitempty"`
		Ports      []reach.PortSet `json:"ports"`
		Was        string          `json:"was"`
		Is         string          `json:"is"`
		// By are the sides whose decision changed.
		By []diffSide `json:"by"`

		from, to []string // for the text output
	}
	diffSide struct {
		Direction string   `json:"direction"`
		OS        model.OS `json:"os"`
	}
)

// compareVersions reports on two versions of a cluster.
func compareVersions(p *reach.Partition) *diffReport {
	r := &diffReport{Changes: []diffChange{}, Policies: []string{}, OnlyA: podNames(p.Only(0)), OnlyB: podNames(p.Only(1)), OverBlocked: crowded(p)}
	for _, c := range p.Changes() {
		change := diffChange{Ports: reach.PortSets(p.Cells(), p.Members(c.Ports)), Was: c.Was.String(), Is: c.Is.String()}
		for _, g := range c.From {
			change.From, change.from = append(change.From, endNames(g)...), append(change.from, names(g)...)
			change.FromNodes, change.FromRanges = append(change.FromNodes, reportNodes(g)...), append(change.FromRanges, reportRanges(g)...)
		}
		for _, g := range c.To {
			change.To, change.to = append(change.To, endNames(g)...), append(change.to, names(g)...)
			change.ToNodes, change.ToRanges = append(change.ToNodes, reportNodes(g)...), append(change.ToRanges, reportRanges(g)...)
		}
		for _, list := range [][]string{change.From, change.from, change.To, change.to} {
			slices.Sort(list)
		}
		for _, s := range c.By {
			change.By = append(change.By, diffSide{s.Direction.String(), s.OS})
		}
		r.Changes = append(r.Changes, change)
	}
	slices.SortStableFunc(r.Changes, func(a, b diffChange) int {
		return cmp.Or(cmp.Compare(a.Was, b.Was), slices.Compare(a.From, b.From), slices.Compare(a.To, b.To),
			cmp.Compare(fmt.Sprint(a.Ports, a.By), fmt.Sprint(b.Ports, b.By)))
	})
	return r
}

func podNames(ids []model.PodID) []string {
	all := make([]string, len(ids))
	for i, id := range ids {
		all[i] = id.String()
	}
	return all
}

// systems are the operating systems of the sides that changed, in order.
func (c diffChange) systems() []model.OS {
	var all []model.OS
	for _, s := range c.By {
		if !slices.Contains(all, s.OS) {
			all = append(all, s.OS)
		}
	}
	return all
}

func (r *diffReport) write(out io.Writer, limit int) error {
	var b strings.Builder
	for _, os := range []model.OS{model.Linux, model.Windows} {
		shown := 0
		for _, c := range r.Changes {
			if !slices.Contains(c.systems(), os) {
				continue
			}
			if shown == 0 {
				fmt.Fprintf(&b, "enforced on %s:\n", os)
			}
			if shown++; limit == 0 || shown <= limit {
				c.write(&b, os)
			}
		}
		if limit > 0 && shown > limit {
			fmt.Fprintf(&b, "  and %d more: --limit 0 or -o json shows all\n", shown-limit)
		}
	}
	for _, only := range []struct {
		in   string
		pods []string
	}{{"first", r.OnlyA}, {"second", r.OnlyB}} {
		if len(only.pods) > 0 {
			fmt.Fprintf(&b, "not compared, only in the %s: %s\n", only.in, cli.Shorten(only.pods, 10))
		}
	}
	if len(r.Changes) == 0 && len(r.Policies) > 0 {
		fmt.Fprintf(&b, "policies that differ: %s\n", cli.Shorten(r.Policies, 10))
	}
	fmt.Fprintf(&b, "diff: changes=%d\n", len(r.Changes))
	_, err := io.WriteString(out, b.String())
	return err
}

func (c diffChange) write(b *strings.Builder, os model.OS) {
	var sides []string
	for _, s := range c.By {
		if s.OS == os {
			sides = append(sides, s.Direction)
		}
	}
	fmt.Fprintf(b, "  %s -> %s  %s  (%s)\n    from  %s\n    to    %s\n", c.Was, c.Is, reach.PortsText(c.Ports), strings.Join(sides, ", "),
		cli.Shorten(c.from, 10), cli.Shorten(c.to, 10))
}
