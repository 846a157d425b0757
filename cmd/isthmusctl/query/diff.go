// SPDX-License-Identifier: Apache-2.0

package query

import (
	"context"
	"fmt"
	"slices"

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
	placeholders bool
	onlyOpened   bool
	prune        bool
	output       string
	limit        int
}

const diffHelp = `List every flow whose verdict differs between two versions of a cluster, grouped by the policy that is responsible.
The answer consists of sets of pods, nodes, address ranges and ports. It is complete, without sampling.

With two directories, the command compares DIR_A with DIR_B. With one, it compares a cluster with the same cluster
after kubectl apply of DIR. The cluster is that of the kubeconfig file that kubectl uses, of --kubeconfig and
--context, or a dump of it with --manifests. Policies that only the cluster has stay, unless --prune removes them.
Pods of workloads that run already get the labels of the new template. Pods that only one version has are listed,
but not compared. Services that lead to other backends than before are listed with the verdict for each backend, and
deny lists with the sources that they deny in one version only.

If a policy differs and selects no pod of its version, the command adds placeholder pods that match its selectors to
both. So it also compares directories that hold only policies. --placeholders=false turns that off.

Exit status: 0 no verdict differs (with --only-opened: nothing opens), 1 some do, 2 there is no answer. Reasons for 2
are an invalid command line or manifest, an API server that denies access, an empty directory, or no pod in both.`

var diffForms = []string{"text", "markdown", "json", "yaml"}

func (e env) diffCommand() *cobra.Command {
	o := &diffOptions{Source: cluster.Source{WantServices: true, AlsoManifests: true}}
	c := &cobra.Command{
		Use:   "diff DIR | diff DIR_A DIR_B",
		Short: "List every verdict that changes if manifests are applied, or that differs between two directories",
		Long:  diffHelp,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 && len(args) != 2 {
				return cli.Usagef("give a directory to apply, or two directories to compare: see %s --help", c.CommandPath())
			}
			return nil
		},
		RunE: cli.Answering(func(c *cobra.Command, args []string) error { return o.Complete(e.diff(c.Context(), o, args)) }),
	}
	o.Register(c)
	o.RegisterAllowEmpty(c)
	f := c.Flags()
	f.BoolVar(&o.placeholders, "placeholders", true, "add placeholder pods for policies that differ and select none, to compare their effect")
	f.BoolVar(&o.onlyOpened, "only-opened", false, "list only flows that are denied before and allowed after; count the others")
	f.BoolVar(&o.prune, "prune", false, "with one directory: remove all policies of the cluster that it does not have")
	cli.RegisterOutput(c, &o.output, diffForms...)
	f.IntVar(&o.limit, "limit", 200, "maximum number of differences that text and markdown show; 0 means all")
	return c
}

// assume adds placeholder pods for policies that select none, and reports them.
func (o *diffOptions) assume(was, is *model.Objects) []string {
	if !o.placeholders {
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

// versions are two versions of a cluster, and their names for messages.
type versions struct {
	was, is   model.Objects
	from, to  string
	endpoints []*model.EndpointSlice
}

// check rejects flags that do not go together.
func (o *diffOptions) check(args []string) error {
	if err := cli.CheckOutput(o.output, diffForms...); err != nil {
		return err
	}
	two := len(args) == 2
	stdin := 0
	for _, name := range append(slices.Clone(args), o.Manifests...) {
		if name == "-" {
			stdin++
		}
	}
	switch {
	case stdin > 1:
		return cli.Usagef("- stands for stdin, which can be read once: name a file for the other version")
	case o.limit < 0:
		return cli.Usagef("--limit %d: give 0 or more", o.limit)
	case two && (o.Live() || len(o.Manifests) > 0):
		return cli.Usagef("--manifests, --kubeconfig and --context: work with one directory only")
	case two && o.prune:
		return cli.Usagef("--prune: works with one directory only; policies that DIR_B does not have count as removed")
	case two:
		return nil
	}
	if err := o.Check(); err != nil {
		return cli.Usagef("one directory is compared with a cluster; give two directories, or a cluster: %w", err)
	}
	return nil
}

// readVersions reads both versions.
func (e env) readVersions(ctx context.Context, o *diffOptions, args []string) (*versions, error) {
	v := &versions{from: "the cluster", to: args[len(args)-1]}
	second := o.Source
	var err error
	if len(args) == 2 {
		v.from = args[0]
		v.was, err = e.readObjects(ctx, &o.Source, args[0])
	} else {
		second = o.Reader()
		v.was, v.endpoints, err = e.readBase(ctx, o)
	}
	if err != nil {
		return nil, err
	}
	if v.is, err = e.readObjects(ctx, &second, v.to); err != nil {
		return nil, err
	}
	o.Skipped(&second)
	if len(args) == 1 {
		v.is = cluster.Apply(v.was, v.is, o.prune)
	}
	assumed := append(o.assume(&v.was, &v.is), cluster.Assumptions(complete.Place(&v.was, &v.is))...)
	return v, o.Report(e.Stderr, cluster.Problems{Assumed: assumed})
}

// readObjects reads one directory.
func (e env) readObjects(ctx context.Context, s *cluster.Source, dir string) (model.Objects, error) {
	o, problems, err := s.Read(ctx, dir)
	if err == nil {
		err = s.Report(e.Stderr, problems)
	}
	if err != nil {
		return o, fmt.Errorf("%s: %w", dir, err)
	}
	return o, nil
}

// readBase reads the cluster that a directory is compared with.
func (e env) readBase(ctx context.Context, o *diffOptions) (model.Objects, []*model.EndpointSlice, error) {
	if !o.Live() {
		all, problems, err := o.Read(ctx, o.Manifests...)
		if err == nil {
			err = o.Report(e.Stderr, problems)
		}
		return all, all.EndpointSlices, err
	}
	s, problems, err := o.Load(ctx)
	if err != nil {
		return model.Objects{}, nil, err
	}
	all := cluster.ObjectsOf(s)
	all.Services = o.Services
	return all, o.EndpointSlices, o.Report(e.Stderr, problems)
}

func (e env) diff(ctx context.Context, o *diffOptions, args []string) error {
	if err := o.check(args); err != nil {
		return err
	}
	v, err := e.readVersions(ctx, o, args)
	if err != nil {
		return err
	}
	was, is := v.was.Snapshot(), v.is.Snapshot()
	p := reach.New(was, is)
	p.Progress = e.Progress("diff", "groups")
	e.warnCrowded(p)
	r := compareVersions(p, was, is, o.onlyOpened)
	r.locate(v)
	before, after := servicesOf(v, was, is)
	r.addServices(p, v, after)
	r.addServiceChanges(p, before, after, o.onlyOpened)
	r.addTrafficPolicies(v, before)
	r.addLoneServices(v, before, after)
	r.addEnforcement(was, is)
	r.addDenyLists(v, was, is, o.onlyOpened)
	switch o.output {
	case "text":
		err = r.write(e.Stdout, o.limit)
	case "markdown":
		err = r.writeMarkdown(e.Stdout, o.limit)
	default:
		err = cli.EncodeKind(e.Stdout, o.output, "Diff", r)
	}
	switch opens, closes := r.count(); {
	case err != nil:
		return err
	case opens > 0, closes > 0 && !o.onlyOpened:
		return cli.ErrNo
	case !o.AllowEmpty && !shared(v.was.Pods, v.is.Pods) && len(r.OnlyA)+len(r.OnlyB)+len(r.Policies) > 0:
		return fmt.Errorf("nothing to compare: no pod is in both %s and %s", v.from, v.to)
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
