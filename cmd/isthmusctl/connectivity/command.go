// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/connectivity"
	"github.com/isthmus-net/isthmus/common/connectivity/probe"
	"github.com/isthmus-net/isthmus/common/kube/agents"
	"github.com/isthmus-net/isthmus/common/kube/testpods"
	"github.com/isthmus-net/isthmus/common/kube/watch"
	"github.com/isthmus-net/isthmus/common/model"
)

// env is the environment of the commands.
type env struct{ cli.Env }

// Commands returns the commands of this package.
func Commands(c cli.Env) []*cobra.Command {
	e := env{c}
	return []*cobra.Command{e.connectivityCommand(), e.probeCommand()}
}

// mostNodes bounds --max-nodes: the flows grow with its square.
const mostNodes = 50

// options are the flags of the command.
type options struct {
	kubeconfig, context, as string
	groups                  []string
	namespace               string // of the agents

	nodes               []string
	selector, system    string
	most                int
	image, windowsImage string

	timeout, start, settle, attempt time.Duration
	keep, cleanup, quiet            bool
	output                          string
}

func (e env) connectivityCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{
		Use:   "connectivity",
		Short: "Test the network and policy of a cluster with pods of its own, and explain each failure",
		Long: `Start a client and a server pod on some nodes, in a namespace of their own, and try every pair by TCP and UDP, IPv4 and
IPv6: pod to pod, to Services, to the pod's node, and by DNS name. Then NetworkPolicies deny these flows and allow
them again, for ingress and for egress. A flow that does not end as expected is explained by the agents of both ends:
which policy denies it, or what the path looks like. The namespace is removed in the end, also after Ctrl-C.
SCTP and ICMP are not tried.

Pods of Linux nodes run the image of the node's agent. Windows nodes need --windows-image, because the image of the
agent has no base of Windows. They run unprivileged, as the Pod Security Standard restricted demands.

Exit status: 0 all flows ended as expected, 1 some did not or a pod did not run, 2 there is no answer.`,
		Example: `  isthmusctl connectivity                                    # up to 6 nodes of the current cluster
  isthmusctl connectivity --node worker-1 --node worker-2    # two nodes
  isthmusctl connectivity --os linux -o json                 # for programs
  isthmusctl connectivity --windows-image registry.example/isthmusctl:0.2.0-ltsc2022
  isthmusctl connectivity --cleanup                          # remove what --keep left, and test nothing`,
		Args: cli.NoArgs,
		RunE: cli.Answering(func(c *cobra.Command, _ []string) error {
			if err := o.check(c); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return e.connectivity(ctx, o)
		}),
	}
	o.register(c)
	return c
}

func (o *options) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file; default: the file that kubectl uses")
	f.StringVar(&o.context, "context", "", "context of the kubeconfig file")
	f.StringVar(&o.as, "as", "", "user name to impersonate")
	f.StringArrayVar(&o.groups, "as-group", nil, "group to impersonate (repeatable)")
	f.StringVar(&o.namespace, "agent-namespace", agents.DefaultNamespace, "namespace of the agents, which explain failures and name the image; pods of others are never asked")
	f.StringArrayVar(&o.nodes, "node", nil, "test this node (repeatable); default: nodes of both systems")
	f.StringVarP(&o.selector, "selector", "l", "", "test nodes with these labels")
	f.StringVar(&o.system, "os", "", "test nodes of one system: linux or windows")
	f.IntVar(&o.most, "max-nodes", 6, fmt.Sprintf("most nodes to test, at most %d: flows grow with its square", mostNodes))
	f.StringVar(&o.image, "image", "", "image with /isthmusctl for Linux pods; default: the image of the node's agent")
	f.StringVar(&o.windowsImage, "windows-image", "", `image with C:\isthmusctl.exe for Windows pods, on a base of the nodes' Windows version`)
	f.DurationVar(&o.timeout, "timeout", 10*time.Minute, "how long the whole test may take")
	f.DurationVar(&o.start, "start-timeout", 3*time.Minute, "how long to wait for the pods")
	f.DurationVar(&o.settle, "settle", 30*time.Second, "how long to repeat flows that do not end as expected, after each change of policy")
	f.DurationVar(&o.attempt, "attempt-timeout", 2*time.Second, "how long to wait for the answer of a flow")
	f.BoolVar(&o.keep, "keep", false, "leave the namespace; remove it later with --cleanup")
	f.BoolVar(&o.cleanup, "cleanup", false, "remove namespaces of earlier tests, also kept ones, and test nothing")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print no progress on stderr")
	cli.RegisterOutput(c, &o.output, "text", "json", "yaml")
	cli.CompleteFlag(c, "os", []string{"linux", "windows"})
}

// check rejects flags before anything is changed.
func (o *options) check(c *cobra.Command) error {
	if err := cli.CheckOutput(o.output, "text", "json", "yaml"); err != nil {
		return err
	}
	switch {
	case o.system != "" && o.system != string(model.Linux) && o.system != string(model.Windows):
		return cli.Usagef("--os %q: give linux or windows", o.system)
	case o.most < 1 || o.most > mostNodes:
		return cli.Usagef("--max-nodes %d: give 1 to %d", o.most, mostNodes)
	case o.namespace == "":
		return cli.Usagef("--agent-namespace: name the namespace of the agents, such as %s", agents.DefaultNamespace)
	case o.as == "" && len(o.groups) > 0:
		return cli.Usagef("--as-group: give --as, too")
	case o.attempt < probe.MinTimeout || o.attempt > probe.MaxTimeout:
		return cli.Usagef("--attempt-timeout %s: give %s to %s", o.attempt, probe.MinTimeout, probe.MaxTimeout)
	case o.cleanup && o.keep:
		return cli.Usagef("--cleanup and --keep: give one of them")
	}
	for name, d := range map[string]time.Duration{"timeout": o.timeout, "start-timeout": o.start, "settle": o.settle} {
		if d <= 0 {
			return cli.Usagef("--%s %s: give a duration above 0", name, d)
		}
	}
	if len(o.nodes) > o.most && !c.Flags().Changed("max-nodes") {
		o.most = min(len(o.nodes), mostNodes)
	}
	if o.kubeconfig == "" && o.context == "" && !watch.DefaultKubeconfig() {
		return cli.Usagef("no cluster given: give --kubeconfig FILE")
	}
	return nil
}

func (o *options) api() watch.APIConfig {
	cfg := watch.DefaultAPIConfig(o.kubeconfig)
	cfg.UserAgent, cfg.Rules, cfg.Context, cfg.Impersonate, cfg.ImpersonateGroups = "isthmusctl", true, o.context, o.as, o.groups
	return cfg
}

// connectivity tests, and prints the report.
func (e env) connectivity(ctx context.Context, o *options) error {
	interrupted := ctx
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	c, err := testpods.New(o.api())
	if err != nil {
		return err
	}
	cfg := o.config(e)
	var report *connectivity.Report
	if o.cleanup {
		removed, err := connectivity.Clean(ctx, c, cfg, true)
		if err == nil {
			_, err = fmt.Fprintf(e.Stdout, "connectivity: removed=%d\n", len(removed))
		}
		return err
	}
	x := &explainer{options: o, stderr: e.Stderr}
	if cfg.Nodes, err = e.choose(ctx, o, c, x); err == nil {
		cfg.Explain = x.explain
		report, err = connectivity.Run(ctx, c, cfg)
	}
	switch {
	case err != nil && interrupted.Err() != nil:
		return fmt.Errorf("interrupted: %w", err)
	case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("no answer within --timeout %s: %w", o.timeout, err)
	case err != nil:
		return err
	}
	if o.output == "text" {
		err = writeReport(e.Stdout, report)
	} else {
		err = cli.EncodeKind(e.Stdout, o.output, "Connectivity", report)
	}
	if err == nil && !report.Positive() {
		return cli.ErrNo
	}
	return err
}

func (o *options) config(e env) connectivity.Config {
	began := time.Now()
	return connectivity.Config{
		Namespace: "isthmus-connectivity-" + strings.ToLower(rand.Text()[:8]), Keep: o.keep,
		Start: o.start, Settle: o.settle, Attempt: o.attempt, Beat: 4 * time.Second, Poll: time.Second,
		Progress: func(line string) {
			e.Remark(o.quiet, fmt.Sprintf("connectivity, %s: %s", time.Since(began).Round(time.Second), line))
		},
	}
}

// choose returns the nodes to test. The explainer remembers their agents.
func (e env) choose(ctx context.Context, o *options, c *testpods.Cluster, x *explainer) ([]connectivity.Node, error) {
	all, err := c.Candidates(ctx, o.selector)
	if err != nil {
		return nil, err
	}
	if x.agents, err = agents.New(o.api(), o.namespace); err != nil {
		return nil, err
	}
	if x.list, err = x.agents.List(ctx); err != nil {
		e.Remark(o.quiet, fmt.Sprintf("the agents cannot be found, so their answers are missing: %v", err))
	}
	images := map[string]string{}
	for _, a := range x.list {
		if a.OS == model.Linux { // the image for Windows runs as a HostProcess container only
			images[a.Node] = a.Image
		}
	}
	for i := range all {
		all[i].Image = images[all[i].Name]
	}
	chosen, remarks, err := connectivity.Choose(all, connectivity.Choice{Names: o.nodes, OS: model.OS(o.system), Most: o.most,
		Images: map[model.OS]string{model.Linux: o.image, model.Windows: o.windowsImage}})
	for _, r := range remarks {
		e.Remark(o.quiet, r)
	}
	if errors.Is(err, connectivity.ErrNoImage) {
		err = fmt.Errorf("%w: give --image for Linux nodes without an agent, and --windows-image for Windows nodes "+
			"(docs/operate/connectivity.md says how to build one), or leave a system out with --os", err)
	}
	return chosen, err
}
