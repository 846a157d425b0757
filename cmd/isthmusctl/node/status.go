// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
)

func (e env) statusCommand() *cobra.Command {
	s, all := &shared{}, &allNodes{}
	var kubeconfig string
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the state of this node, or of all nodes; exit status 3 if one is not ready",
		Long: `Show the state of this node as its agent knows it, or with --all-nodes of each node.

Exit status: 0 ready, 3 a node is not ready, 2 there is no answer.`,
		Args: cli.NoArgs,
		RunE: cli.Answering(func(c *cobra.Command, _ []string) error {
			if err := errors.Join(s.check(), all.check(c)); err != nil {
				return err
			}
			if all.all {
				return e.statusOfAll(c.Context(), all, s, kubeconfig)
			}
			var node *isthmusv1.GetNodeResponse
			err := e.ask(c.Context(), s, func(ctx context.Context, agent isthmusv1.InspectClient) (err error) {
				node, err = agent.GetNode(ctx, &isthmusv1.GetNodeRequest{})
				return err
			})
			if err != nil {
				return err
			}
			if s.output == "json" || s.output == "yaml" {
				err = writeMessage(e.Stdout, s.output, "NodeStatus", node)
			} else {
				err = writeStatus(e.Stdout, node, s.output == "wide")
			}
			if err == nil && !node.GetReady() {
				return cli.ErrNotReady
			}
			return err
		}),
	}
	s.register(c)
	all.register(c)
	c.Flags().StringVar(&kubeconfig, "kubeconfig", "", "with --all-nodes: kubeconfig file; default: the file that kubectl uses")
	return c
}

func writeStatus(out io.Writer, n *isthmusv1.GetNodeResponse, wide bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%s:\t%s\n", name, fmt.Sprintf(format, args...))
	}
	ready := "yes"
	if !n.GetReady() {
		ready = "no"
	}
	row("Node", "%s", n.GetNode())
	row("Ready", "%s", ready)
	row("Agent", "%s on %s (%s)", n.GetVersion(), cli.OrNone(n.GetOs()), cli.OrNone(n.GetPlatform()))
	row("Mode", "%s", cmp.Or(n.GetMode(), "unknown"))
	row("Pod ranges", "%s", cli.OrNone(strings.Join(n.GetPodCidrs(), ", ")))
	row("Endpoints", "%d", n.GetEndpoints())
	row("Known", "%d pods, %d policies", n.GetPodsKnown(), n.GetPolicies())
	row("Applied", "%s", when(n.GetAppliedUnixNano()))
	if wide {
		row("Compiled", "%d tables, %d peer classes, %d port classes", n.GetTables(), n.GetPeerClasses(), n.GetPortClasses())
		row("Ingress", "%s", decided(n, n.GetIngressAllowed(), n.GetIngressDenied()))
		row("Egress", "%s", decided(n, n.GetEgressAllowed(), n.GetEgressDenied()))
	}
	for _, m := range n.GetPathModes() {
		row("Data path", "%s by %s (%d)", strings.ReplaceAll(m.GetPart(), "_", " "), m.GetMode(), m.GetCount())
	}
	for _, f := range n.GetFacts() {
		subject, statement, _ := strings.Cut(f, ": ")
		row(strings.ToUpper(subject[:min(1, len(subject))])+subject[min(1, len(subject)):], "%s", statement)
	}
	for _, d := range n.GetDenyDevices() {
		row("Deny list", "%d IPv4 and %d IPv6 entries on %s (XDP, %s)", n.GetDeniedIpv4(), n.GetDeniedIpv6(), d.GetName(), d.GetMode())
	}
	for _, r := range n.GetRepairs() {
		row("Repaired", "%s", r)
	}
	for _, p := range n.GetProblems() {
		row("Problem", "%s", p)
	}
	for _, u := range n.GetUnsupported() {
		row("Unsupported", "%s", u)
	}
	return w.Flush()
}

// decided returns how many flows of a direction were decided, as far as the node counts them.
func decided(n *isthmusv1.GetNodeResponse, allowed, denied uint64) string {
	switch {
	case n.GetDeniedNotCounted():
		return "flows are not counted"
	case n.GetAllowedNotCounted():
		return fmt.Sprintf("%d flows denied; allowed ones are not counted", denied)
	}
	return fmt.Sprintf("%d flows allowed, %d denied", allowed, denied)
}

func when(unixNano int64) string {
	if unixNano == 0 {
		return "never by this agent"
	}
	return time.Unix(0, unixNano).UTC().Format(time.RFC3339)
}
