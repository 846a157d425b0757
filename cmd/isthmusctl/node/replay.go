// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/daemon"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
	"github.com/isthmus-net/isthmus/common/analysis/cells"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/windows/acl/aclsim"
)

// passed are the commands that replay passes on: they read the objects of a Bundle as manifests.
var passed = []string{"explain", "matrix", "lint", "compile", "diff"}

func (e env) replayCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "replay FILE trace|verify|policies|about|explain|matrix ...",
		Short: "Run queries on an archive that isthmusctl bundle wrote",
		Long: `Run queries about a node on an archive that isthmusctl bundle wrote, on any machine.

  about      who wrote it, the problems and the differences at that time
  trace      follows a flow, as isthmusctl trace does on the node
  policies   as isthmusctl policies does on the node
  verify     compares every decision of the data path with the policies
  explain, matrix, lint, compile, diff
             as these commands do with --manifests FILE

Exit status of verify: 0 every decision is as intended, 1 some differ, 2 there is no answer.`,
		DisableFlagParsing: true,
		RunE: cli.Answering(func(c *cobra.Command, args []string) error {
			if len(args) > 0 && (args[0] == "-h" || args[0] == "--help") {
				return c.Help()
			}
			if len(args) < 2 {
				return cli.Usagef("replay: give a file and a command: see isthmusctl replay --help")
			}
			if slices.Contains(passed, args[1]) {
				root := c.Root()
				root.SetArgs(slices.Concat(args[1:2], []string{"--manifests", args[0], "--stored"}, args[2:]))
				return root.ExecuteContext(c.Context())
			}
			b, err := cluster.ReadBundle(args[0])
			if _, none := os.Stat(args[0]); none != nil {
				err = none
			}
			if err == nil && b == nil {
				err = fmt.Errorf("%s is not a file that isthmusctl bundle wrote", args[0])
			}
			if err != nil {
				return err
			}
			sub := e.replayed(b)
			sub.SetArgs(args[1:])
			return sub.ExecuteContext(c.Context())
		}),
	}
}

// replayed returns the commands about one Bundle.
func (e env) replayed(b *inspect.Bundle) *cobra.Command {
	root := &cobra.Command{Use: "replay", Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "isthmusctl replay FILE"}, SilenceErrors: true, SilenceUsage: true, Args: cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return cli.Usagef("replay: give a command: see isthmusctl replay --help")
		}}
	root.SetOut(e.Stdout)
	root.SetErr(e.Stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usagef("%w", daemon.FlagError(err)) })
	root.CompletionOptions.DisableDefaultCmd = true
	traced := &traceOptions{}
	trace := &cobra.Command{Use: "trace", Args: cli.NoArgs, RunE: func(*cobra.Command, []string) error { return e.trace(b, traced) }}
	traced.register(trace)
	root.AddCommand(trace,
		&cobra.Command{Use: "verify", Args: cli.NoArgs, RunE: func(c *cobra.Command, _ []string) error { return e.verify(c.Context(), b) }},
		&cobra.Command{Use: "policies", Args: cli.NoArgs, RunE: func(*cobra.Command, []string) error { return e.writePolicies(b, "text") }},
		&cobra.Command{Use: "about", Args: cli.NoArgs, RunE: func(*cobra.Command, []string) error { return e.writeAbout(b) }})
	return root
}

// VerifyLive returns a function that compares the decisions of this node with its policies, as replay FILE verify does.
func VerifyLive(c cli.Env) func(ctx context.Context, socket string, timeout time.Duration) error {
	e := env{c}
	return func(ctx context.Context, socket string, timeout time.Duration) error {
		b, err := e.dump(ctx, &shared{socket: socket, timeout: timeout}, &isthmusv1.DumpRequest{})
		if err != nil {
			return err
		}
		return e.verify(ctx, b)
	}
}

// verify compares the decisions that were read back with the policies, cell by cell.
func (e env) verify(ctx context.Context, b *inspect.Bundle) error {
	node, err := comparable(b)
	if err != nil {
		return err
	}
	result, err := cells.Compare(ctx, node)
	if err != nil {
		return err
	}
	for i, d := range result.Differences {
		if i == 20 {
			fmt.Fprintf(e.Stdout, "and %d more\n", result.Differ-i)
			break
		}
		fmt.Fprintln(e.Stdout, d)
	}
	for _, p := range result.Problems {
		fmt.Fprintln(e.Stdout, p)
	}
	for _, d := range b.Drift {
		fmt.Fprintln(e.Stdout, driftText(b, d))
	}
	fmt.Fprintf(e.Stdout, "%s: %d endpoints, %d cells compared, %d differ, %d over-blocked as reported, %d differences found by the audit\n",
		b.About.Node, result.Endpoints, result.Cells, result.Differ, result.OverBlocked, len(b.Drift))
	if result.Differ > 0 || len(result.Problems) > 0 || len(b.Drift) > 0 {
		return cli.ErrNo
	}
	return nil
}

// comparable returns the decisions of a Bundle and the objects that they follow from.
func comparable(b *inspect.Bundle) (*cells.Node, error) {
	if b.Installed == nil {
		return nil, fmt.Errorf("there are no decisions of node %s to compare: %s", b.About.Node, strings.Join(b.About.Notes, "; "))
	}
	n := &cells.Node{Snapshot: b.Snapshot(), State: b.Installed.State, Reported: b.About.Unsupported}
	if n.State != nil {
		return n, nil
	}
	ruleset, err := ruleset(b)
	if err != nil {
		return nil, err
	}
	endpoints := make(map[model.EndpointID]compile.Endpoint)
	for _, e := range b.Endpoints {
		if e.Table != "" {
			endpoints[e.ID] = compile.Endpoint{Pod: e.Pod, IPs: e.Addresses}
		}
	}
	n.State, _ = compile.Once(compile.Input{Snapshot: n.Snapshot, Node: b.About.Node, Endpoints: endpoints, Limits: compile.DefaultLimits()})
	lists := &aclsim.Lists{Variant: aclsim.Variant{Name: "installed"}, Ruleset: ruleset, Unsupported: b.About.Unsupported}
	for _, v := range aclsim.Variants() {
		if strings.Contains(v.Name, strings.TrimPrefix(b.About.Platform, "HNS ")) {
			lists.Options = v.Options
		}
	}
	n.Lists = []cells.Lists{lists}
	return n, nil
}

func driftText(b *inspect.Bundle, d inspect.Drift) string {
	where := ""
	for _, e := range b.Endpoints {
		if e.ID == d.Endpoint && d.Endpoint != "" {
			where = " of pod " + e.Pod.String()
		}
	}
	return fmt.Sprintf("DRIFT: %s%s: %s", d.Object, where, d.Detail)
}

// writeAbout prints the part of a Bundle that concerns no single flow.
func (e env) writeAbout(b *inspect.Bundle) error {
	a := &b.About
	fmt.Fprintf(e.Stdout, "node %s, %s (%s), agent %s, written %s\n", a.Node, a.OS, a.Platform, a.Version, a.Created.UTC().Format("2006-01-02T15:04:05Z"))
	fmt.Fprintf(e.Stdout, "ready %t, policy applied %s; %d endpoints; the cluster has %d pods, %d policies\n",
		a.Ready, age(a.Applied, a.Created), len(b.Endpoints), len(b.Cluster.Pods), len(b.Cluster.Policies))
	for _, list := range []struct {
		title string
		lines []string
	}{{"setting", a.Settings}, {"problem", a.Problems}, {"repaired", a.Repairs}, {"note", a.Notes}} {
		for _, line := range list.lines {
			fmt.Fprintf(e.Stdout, "%s: %s\n", list.title, line)
		}
	}
	for _, u := range a.Unsupported {
		fmt.Fprintf(e.Stdout, "unsupported: %s\n", u)
	}
	for _, d := range b.Drift {
		fmt.Fprintln(e.Stdout, driftText(b, d))
	}
	return nil
}
