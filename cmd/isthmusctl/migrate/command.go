// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/linux/takeover"
)

type env struct{ cli.Env }

// options are the flags that name the network and its files.
type options struct {
	from, stateDir, confDir, cacheDir, output string
	podCIDRs                                  []string
}

// Commands returns the commands of this package.
func Commands(c cli.Env) []*cobra.Command {
	e := env{c}
	m := &cobra.Command{
		Use:   "migrate",
		Short: "Move this node from flannel, bridge or kubenet to Isthmus without restarting pods (Linux)",
		Long: `Move this node from the bridge of flannel, of the bridge plugin or of kubenet to mode full of Isthmus, without
restarting its pods. Each pod keeps its interface, its MAC and its addresses. docs/operate/migrate.md describes the
whole procedure.`,
		Args: cli.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	m.AddCommand(e.planCommand())
	return []*cobra.Command{m}
}

func (o *options) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&o.from, "from", "", "the network that connects the pods: "+strings.Join(takeover.Networks(), ", "))
	f.StringVar(&o.stateDir, "state-dir", "/var/lib/isthmus", "state directory of the agent")
	f.StringVar(&o.confDir, "cni-conf-dir", "/etc/cni/net.d", "directory of CNI configurations of the runtime")
	f.StringVar(&o.cacheDir, "cni-cache-dir", "/var/lib/cni", "directory in which the runtime keeps results of CNI plugins")
	f.StringSliceVar(&o.podCIDRs, "pod-cidr", nil, "pod ranges that the node will have; default: those of the network")
	cli.RegisterOutput(c, &o.output, "text", "json", "yaml")
}

func (o *options) check() error {
	if !slices.Contains(takeover.Networks(), o.from) {
		return cli.Usagef("--from %q: give one of %s", o.from, strings.Join(takeover.Networks(), ", "))
	}
	for _, d := range []struct{ flag, path string }{{"state-dir", o.stateDir}, {"cni-conf-dir", o.confDir}, {"cni-cache-dir", o.cacheDir}} {
		if !filepath.IsAbs(d.path) {
			return cli.Usagef("--%s %q: give an absolute path", d.flag, d.path)
		}
	}
	return cli.CheckOutput(o.output, "text", "json", "yaml")
}

func (e env) planCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{
		Use:   "plan --from flannel|bridge|kubenet",
		Short: "Print the steps of the migration of this node, or why it cannot be migrated",
		Long: `Print the steps that would move this node to mode full, in their order, or the reasons against it. The agent of mode
policy may run meanwhile, and must have adopted all pods. Nothing is changed.

Exit status: 0 the node can be migrated, 1 it cannot, 2 there is no answer.`,
		Args: cli.NoArgs,
		RunE: cli.Answering(func(*cobra.Command, []string) error {
			if err := o.check(); err != nil {
				return err
			}
			plan, reasons, err := makePlan(o)
			if err != nil {
				return err
			}
			return e.writePlan(plan, reasons, o)
		}),
	}
	o.register(c)
	return c
}

// writePlan prints a plan, or the reasons against one.
func (e env) writePlan(plan *takeover.Plan, reasons []string, o *options) error {
	var steps []string
	if plan != nil {
		for _, s := range plan.Steps {
			steps = append(steps, plan.Describe(s))
		}
	}
	if o.output != "text" {
		answer := map[string]any{"from": o.from, "steps": append([]string{}, steps...), "reasons": append([]string{}, reasons...)}
		if err := cli.EncodeKind(e.Stdout, o.output, "MigrationPlan", answer); err != nil {
			return err
		}
	} else {
		writeText(e.Stdout, plan, steps, reasons)
	}
	if len(reasons) > 0 {
		return cli.ErrNo
	}
	return nil
}

func writeText(w io.Writer, plan *takeover.Plan, steps, reasons []string) {
	if len(reasons) > 0 {
		fmt.Fprintln(w, "this node cannot be migrated:")
		for _, r := range reasons {
			fmt.Fprintln(w, "  -", r)
		}
		return
	}
	fmt.Fprintf(w, "network %s (%s), bridge %s, %d pods, %d steps:\n", plan.Network.Name, plan.Network.From, plan.Bridge.Name, len(plan.Pods), len(steps))
	for i, s := range steps {
		fmt.Fprintf(w, "%4d  %s\n", i+1, s)
	}
}
