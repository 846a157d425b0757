// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/daemon/pages"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/linux/takeover"
)

type env struct{ cli.Env }

// options are the flags that name the network and its files.
type options struct {
	from, output           string
	podCIDRs, clusterCIDRs []string
	dryRun                 bool

	stateDir, confDir, cacheDir, bpffs string // Linux

	node, hnsNetwork, hnsMode string // Windows
	vni                       uint32 // Windows
}

// linuxOnly and windowsOnly are the flags that have a meaning on that system only.
var (
	linuxOnly   = []string{"bpffs", "state-dir", "cni-conf-dir", "cni-cache-dir", "cluster-cidr"}
	windowsOnly = []string{"node-name", "hns-network", "hns-mode", "vni"}
)

// Commands returns the commands of this package.
func Commands(c cli.Env) []*cobra.Command {
	e := env{c}
	m := &cobra.Command{
		Use:   "migrate",
		Short: "Move this node from flannel, bridge or kubenet to Isthmus without restarting pods (Linux); plan it (Windows)",
		Long: `Move this node from the bridge of flannel, of the bridge plugin or of kubenet to mode full of Isthmus, without
restarting its pods. Each pod keeps its interface, its MAC and its addresses. docs/operate/migrate.md describes the
whole procedure.

Windows nodes are drained. There, migrate plan says whether the agent can take over the HNS network, and the other commands
change nothing.`,
		Args: cli.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	m.AddCommand(e.planCommand(), e.runCommand(), e.rollbackCommand())
	return []*cobra.Command{m}
}

func (o *options) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&o.from, "from", "", "the network that connects the pods: "+strings.Join(takeover.Networks(), ", ")+" (Windows: not kubenet)")
	cli.CompleteFlag(c, "from", takeover.Networks())
	o.registerStateDir(c)
	f.StringVar(&o.confDir, "cni-conf-dir", "/etc/cni/net.d", "directory of CNI configurations of the runtime (Linux)")
	f.StringVar(&o.cacheDir, "cni-cache-dir", "/var/lib/cni", "directory in which the runtime keeps results of CNI plugins (Linux)")
	f.StringSliceVar(&o.podCIDRs, "pod-cidr", nil, "pod ranges that the node will have; default: those of the network")
	f.StringSliceVar(&o.clusterCIDRs, "cluster-cidr", nil, "pod ranges of the cluster: routes of this node into them become those of Isthmus; flannel says which they are (Linux)")
	host, _ := os.Hostname() // as the agent names its node
	f.StringVar(&o.node, "node-name", strings.ToLower(strings.TrimSpace(host)), "name of this node's Node object, for the commands in the plan (Windows)")
	pages.SetDefault(f, "node-name", "the host name")
	f.StringVar(&o.hnsNetwork, "hns-network", "", "name of the HNS network (Windows); default: the only one of a type that the program makes")
	f.StringVar(&o.hnsMode, "hns-mode", "", "--hns-mode that the agent will have, l2bridge or overlay (Windows); default: that of the network")
	f.Uint32Var(&o.vni, "vni", 0, "--vni that the agents of all nodes will have (Windows); default: that of the network")
	cli.CompleteFlag(c, "hns-mode", []string{"l2bridge", "overlay"})
	cli.RegisterOutput(c, &o.output, "text", "json", "yaml")
}

func (o *options) registerStateDir(c *cobra.Command) {
	c.Flags().StringVar(&o.stateDir, "state-dir", "/var/lib/isthmus", "state directory of the agent (Linux)")
}

func (o *options) registerBPFFS(c *cobra.Command) {
	c.Flags().StringVar(&o.bpffs, "bpffs", "/sys/fs/bpf/isthmus", "the agent's directory of pinned maps (Linux)")
}

// check reports what is wrong with the flags of plan and run on a system.
func (o *options) check(c *cobra.Command, goos string) error {
	if !slices.Contains(takeover.Networks(), o.from) {
		return cli.Usagef("--from %q: give one of %s", o.from, strings.Join(takeover.Networks(), ", "))
	}
	if goos == "windows" && o.from == takeover.FromKubenet {
		return cli.Usagef("--from kubenet: kubenet connects no pods of Windows nodes: give bridge or flannel")
	}
	if !slices.Contains([]string{"", "l2bridge", "overlay"}, o.hnsMode) {
		return cli.Usagef("--hns-mode %q: give l2bridge or overlay", o.hnsMode)
	}
	if err := o.checkSystem(c, goos); err != nil {
		return err
	}
	return cli.CheckOutput(o.output, "text", "json", "yaml")
}

// checkSystem rejects flags of the other system, and relative paths.
func (o *options) checkSystem(c *cobra.Command, goos string) error {
	for only, flags := range map[string][]string{"linux": linuxOnly, "windows": windowsOnly} {
		for _, name := range flags {
			if f := c.Flags().Lookup(name); goos != only && f != nil && f.Changed {
				return cli.Usagef("--%s has no meaning on %s: remove it", name, goos)
			}
		}
	}
	if goos != "linux" {
		return nil
	}
	for _, name := range []string{"bpffs", "state-dir", "cni-conf-dir", "cni-cache-dir"} {
		if f := c.Flags().Lookup(name); f != nil && !filepath.IsAbs(f.Value.String()) {
			return cli.Usagef("--%s %q: give an absolute path", name, f.Value)
		}
	}
	return nil
}

func parseRanges(flag string, texts []string) (all []netip.Prefix, err error) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() {
			return nil, cli.Usagef("--%s %q: write it as ADDRESS/BITS without host bits", flag, text)
		}
		all = append(all, p)
	}
	return all, nil
}

func (e env) planCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{
		Use:   "plan --from flannel|bridge|kubenet",
		Short: "Print the steps of the migration of this node, or why it cannot be migrated",
		Long: `Print the steps that would move this node to mode full, in their order, or the reasons against it. The agent of mode
policy may run meanwhile, and must have adopted all pods. Nothing is changed. Of a migration that has begun, print the steps that
are left.

On a Windows node it reads HNS, and compares the network with what an agent needs at its start. It prints the flags for the agent,
or each difference, and the endpoints of pods that must be drained. The steps are those of an administrator: no command does them.

Exit status: 0 the node can be migrated (Windows: the agent can take over the network as it is), 1 it cannot, 2 there is no answer.`,
		Args: cli.NoArgs,
		RunE: cli.Answering(func(c *cobra.Command, _ []string) error {
			if err := o.check(c, runtime.GOOS); err != nil {
				return err
			}
			return e.plan(c.Context(), o)
		}),
	}
	o.register(c)
	return c
}

func (e env) runCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{
		Use:   "run --from flannel|bridge|kubenet",
		Short: "Migrate this node (Linux); the agent must not run",
		Long: `Do the steps that migrate plan prints. Stop the agent before: its programs keep enforcing policy. Then start it with
the flags that the command prints. A step that fails is reversed, and so are all before it. After an interruption, the same command
continues, and migrate rollback reverses what was done.

On a Windows node nothing needs running, and the command says so: the administrator does the steps of migrate plan.

Exit status: 0 the node is migrated, 1 it cannot be, 2 the node is as before or must be continued, as the error says.`,
		Args: cli.NoArgs,
		RunE: cli.Answering(func(c *cobra.Command, _ []string) error {
			if err := o.check(c, runtime.GOOS); err != nil {
				return err
			}
			if o.dryRun {
				return e.plan(c.Context(), o)
			}
			return e.forward(c.Context(), o)
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
		Short: "Reverse the migration of this node (Linux)",
		Long: `Reverse the steps of migrate run in the opposite order. Stop the agent before. After a complete migration this takes two
calls: the first gives the pods back to mode policy; then start the agent with --mode=policy; the second moves the
pods to the bridge while that agent runs. Each call says what comes next.

On a Windows node no command has changed anything. This one says how to go back, with exit status 2.`,
		Args: cli.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.checkSystem(c, runtime.GOOS); err != nil {
				return err
			}
			return e.backward(c.Context(), o)
		},
	}
	o.registerStateDir(c)
	o.registerBPFFS(c)
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "print the steps that would be reversed, and change nothing; the agent may run")
	return c
}
