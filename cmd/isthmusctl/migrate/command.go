// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"cmp"
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
	from, stateDir, confDir, cacheDir, bpffs, output string
	podCIDRs, clusterCIDRs                           []string
	dryRun                                           bool
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
	m.AddCommand(e.planCommand(), e.runCommand(), e.rollbackCommand())
	return []*cobra.Command{m}
}

func (o *options) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&o.from, "from", "", "the network that connects the pods: "+strings.Join(takeover.Networks(), ", "))
	cli.CompleteFlag(c, "from", takeover.Networks())
	f.StringVar(&o.stateDir, "state-dir", "/var/lib/isthmus", "state directory of the agent")
	f.StringVar(&o.confDir, "cni-conf-dir", "/etc/cni/net.d", "directory of CNI configurations of the runtime")
	f.StringVar(&o.cacheDir, "cni-cache-dir", "/var/lib/cni", "directory in which the runtime keeps results of CNI plugins")
	f.StringSliceVar(&o.podCIDRs, "pod-cidr", nil, "pod ranges that the node will have; default: those of the network")
	f.StringSliceVar(&o.clusterCIDRs, "cluster-cidr", nil, "pod ranges of the cluster: routes of this node into them become those of Isthmus; flannel says which they are")
	cli.RegisterOutput(c, &o.output, "text", "json", "yaml")
}

func (o *options) registerBPFFS(c *cobra.Command) {
	c.Flags().StringVar(&o.bpffs, "bpffs", "/sys/fs/bpf/isthmus", "the agent's directory of pinned maps")
}

func (o *options) check() error {
	if !slices.Contains(takeover.Networks(), o.from) {
		return cli.Usagef("--from %q: give one of %s", o.from, strings.Join(takeover.Networks(), ", "))
	}
	for _, d := range []struct{ flag, path string }{
		{"bpffs", cmp.Or(o.bpffs, "/")}, {"state-dir", o.stateDir}, {"cni-conf-dir", o.confDir}, {"cni-cache-dir", o.cacheDir},
	} {
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

func (e env) runCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{
		Use:   "run --from flannel|bridge|kubenet",
		Short: "Migrate this node; the agent must not run",
		Long: `Do the steps that migrate plan prints. Stop the agent before: its programs keep enforcing policy. Then start it with
the flags that the command prints. A step that fails is reversed, and so are all before it. After an interruption, the same command
continues, and migrate rollback reverses what was done.

Exit status: 0 the node is migrated, 1 it cannot be, 2 the node is as before or must be continued, as the error says.`,
		Args: cli.NoArgs,
		RunE: cli.Answering(func(c *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			if !o.dryRun {
				return e.forward(c.Context(), o)
			}
			plan, reasons, err := makePlan(o)
			if err != nil {
				return err
			}
			return e.writePlan(plan, reasons, o)
		}),
	}
	o.register(c)
	o.registerBPFFS(c)
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "print each step and change nothing, as migrate plan does")
	return c
}

func (e env) rollbackCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{
		Use:   "rollback",
		Short: "Reverse the migration of this node",
		Long: `Reverse the steps of migrate run in the opposite order. Stop the agent before. After a complete migration this takes two
calls: the first gives the pods back to mode policy; then start the agent with --mode=policy; the second moves the
pods to the bridge while that agent runs. Each call says what comes next.`,
		Args: cli.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !filepath.IsAbs(o.stateDir) || !filepath.IsAbs(o.bpffs) {
				return cli.Usagef("--state-dir %q, --bpffs %q: give absolute paths", o.stateDir, o.bpffs)
			}
			return e.backward(c.Context(), o)
		},
	}
	c.Flags().StringVar(&o.stateDir, "state-dir", "/var/lib/isthmus", "state directory of the agent")
	o.registerBPFFS(c)
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
		if plan != nil {
			answer["agentFlags"] = plan.AgentFlags()
		}
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
	for _, t := range plan.Tunnels {
		fmt.Fprintf(w, "device %s and its routes to other nodes stay: flanneld must keep running\n", t.Name)
	}
	if plan.Network.Conf == "" {
		fmt.Fprintf(w, "stop the runtime first, and start it with network plugin cni after the agent: its own %s would connect new pods without policy\n", plan.Network.Name)
	}
	fmt.Fprintf(w, "then start the agent with %s\n", strings.Join(plan.AgentFlags(), " "))
}
