// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/query"
	"github.com/isthmus-net/isthmus/common/analysis/lint"
	"github.com/isthmus-net/isthmus/common/httpd"
	"github.com/isthmus-net/isthmus/common/kube/agents"
	"github.com/isthmus-net/isthmus/common/page"
)

// options are the flags of ui.
type options struct {
	cluster.Source
	port      int
	agents    bool
	namespace string // of the agents
	flows     flowFlags
}

// Commands returns the commands of this package.
func Commands(e cli.Env) []*cobra.Command {
	o := &options{Source: cluster.Source{WantServices: true}}
	c := &cobra.Command{
		Use:   "ui",
		Short: "Serve web pages about policies to the browser of this machine",
		Long: `Serve web pages to the browser of this machine: who reaches whom, why a flow is denied and which edit allows it, denied
flows while they happen, nodes, policies, and what nodes do not enforce exactly. The command prints the address of the
pages and runs until it is interrupted.

Manifests are read once. A cluster is watched, and the pages show its newest state.

Denied flows come from the relay that --relay names, with the rights of the token in --relay-token-file. Without it they come
from the agent of this machine, which needs root. Without both the page says so.

The address has a random token, which counts until the command ends. Only this machine reaches the pages. A user who
has the token reads the cluster and these flows with your rights.`,
		Args: cli.NoArgs,
		Example: `  isthmusctl ui -m manifests/
  kubectl -n isthmus-system port-forward service/isthmus-relay 4245 &
  isthmusctl ui --relay tls://localhost:4245 --relay-ca ca.crt --relay-server-name isthmus-relay.isthmus-system.svc \
    --relay-token-file <(kubectl create token my-account)`,
		RunE: cli.Answering(func(c *cobra.Command, _ []string) error { return o.Complete(o.run(c, e)) }),
	}
	o.Register(c)
	o.RegisterPlaceholders(c)
	f := c.Flags()
	f.IntVar(&o.port, "port", 0, "TCP port on 127.0.0.1; 0 is a free one")
	f.BoolVar(&o.agents, "agents", false, "ask the agents of all nodes for their status and the numbers of policies, as kubectl exec does; needs the right to exec in their pods")
	f.StringVar(&o.namespace, "agent-namespace", agents.DefaultNamespace, "with --agents: namespace of the agents; pods of others are never asked")
	o.flows.register(c)
	return []*cobra.Command{c}
}

// check rejects flags that do not fit together.
func (o *options) check(c *cobra.Command) error {
	if o.port < 0 || o.port > 65535 {
		return cli.Usagef("--port %d: give a number from 0 to 65535", o.port)
	}
	if err := o.Check(); err != nil {
		return err
	}
	if o.agents && !o.Live() {
		return cli.Usagef("--agents: works with an API server only")
	}
	if !o.agents && c.Flags().Changed("agent-namespace") {
		return cli.Usagef("--agent-namespace: works with --agents only")
	}
	if o.namespace == "" {
		return cli.Usagef("--agent-namespace: name the namespace of the agents, such as %s", agents.DefaultNamespace)
	}
	return o.flows.check(c)
}

// run serves the pages until the context of the command ends.
func (o *options) run(c *cobra.Command, e cli.Env) error {
	if err := o.check(c); err != nil {
		return err
	}
	flows, of, err := o.flows.open(e)
	if err != nil {
		return err
	}
	defer flows.Close()
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(o.port)))
	if err != nil {
		return fmt.Errorf("listen on --port: %w", err)
	}
	defer listener.Close()
	ctx, end := context.WithCancel(c.Context())
	defer end()
	config := page.Config{
		Base:     "/" + rand.Text(),
		Hosts:    []string{"127.0.0.1", "localhost"},
		Enforced: query.Enforced,
		Inexact: func(ctx context.Context, c *page.Cluster) ([]lint.Construct, error) {
			return query.Inexact(ctx, c.Snapshot)
		},
		Flows:   flows.Flows,
		FlowsOf: of,
	}
	watched := make(chan error, 1)
	if o.Live() {
		w, err := o.watch(ctx, end, watched)
		if err != nil {
			return err
		}
		config.Cluster = w.cluster
	} else {
		c, err := o.manifests(ctx, e)
		if err != nil {
			return err
		}
		config.Cluster = func() *page.Cluster { return c }
		close(watched)
	}
	if o.agents {
		if err := askAgents(ctx, o.APIConfig(), o.namespace, o.Timeout(), &config); err != nil {
			return err
		}
	}
	h, err := page.New(ctx, config)
	if err != nil {
		return err
	}
	h.Prepare()
	fmt.Fprintf(e.Stdout, "http://%s%s/\n", listener.Addr(), config.Base)
	limits := httpd.Defaults()
	limits.Write = time.Minute // a large cluster that has just changed
	err = httpd.Serve(ctx, listener, h, limits)
	end()
	if why := <-watched; why != nil {
		return why
	}
	return err
}

// manifests reads the cluster once.
func (o *options) manifests(ctx context.Context, e cli.Env) (*page.Cluster, error) {
	s, found, err := o.Load(ctx)
	if err != nil {
		return nil, err
	}
	if err := o.Report(e.Stderr, found); err != nil {
		return nil, err
	}
	c := &page.Cluster{Snapshot: s, Services: o.Services, Places: o.Places, Workloads: o.Workloads, Source: o.Name(), At: time.Now(), Remarks: found.Warnings}
	for _, a := range found.Assumed {
		c.Remarks = append(c.Remarks, "assumed: "+a)
	}
	for _, b := range found.Bad {
		c.Remarks = append(c.Remarks, "left out: "+b)
	}
	return c, nil
}
