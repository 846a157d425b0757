// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/follow"
	"github.com/isthmus-net/isthmus/common/analysis/trace"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
)

// traceOptions are the flags of trace.
type traceOptions struct {
	from, to, protocol, port, output string
}

func (o *traceOptions) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&o.from, "from", "", "source: namespace/pod, namespace/pod@IP, node:NAME or an address")
	f.StringVar(&o.to, "to", "", "destination, in the same forms")
	f.StringVar(&o.protocol, "protocol", "tcp", "tcp, udp, sctp, icmp, icmpv6 or a number")
	cli.CompleteFlag(c, "protocol", cli.Protocols())
	f.StringVarP(&o.port, "port", "p", "", "destination port: a number, or a port name of the destination pod")
	cli.RegisterOutput(c, &o.output, "text", "json", "yaml")
}

func (e env) traceCommand() *cobra.Command {
	s, o, all := &shared{}, &traceOptions{}, &allNodes{}
	var kubeconfig string
	c := &cobra.Command{
		Use:   "trace --from POD|IP --to POD|IP --port N",
		Short: "Follow a new connection through this node, or all: what policy intends, and what the data path holds",
		Long: `Follow a new connection through this node, step by step: the attachment of each end, the policies of each end and
the path between them. Each decision is shown twice: as the policies intend it, and as it was read back from the
maps of the kernel or from HNS. DRIFT marks a step at which they differ. Nothing is sent or changed.

With --all-nodes the nodes of both ends answer, through the API server. The destination may then be a Service, as
svc/NAMESPACE/NAME, by its address or a node port: each backend is followed, because nodes choose one at random for a
connection.

Exit status: 0 allowed and as intended, 1 denied or different from what is intended, 2 there is no answer.`,
		Args: cli.NoArgs,
		RunE: cli.Answering(func(c *cobra.Command, _ []string) error {
			if err := all.check(c); err != nil {
				return err
			}
			if all.all {
				return e.traceAll(c.Context(), all, s, o, kubeconfig)
			}
			b, err := e.dump(c.Context(), s, &isthmusv1.DumpRequest{Brief: true})
			if err != nil {
				return err
			}
			return e.trace(b, o)
		}),
	}
	s.registerConnection(c)
	o.register(c)
	all.register(c)
	c.Flags().StringVar(&kubeconfig, "kubeconfig", "", "with --all-nodes: kubeconfig file; default: the file that kubectl uses")
	return c
}

// trace prints the trace of a flow.
func (e env) trace(b *inspect.Bundle, o *traceOptions) error {
	if err := cli.CheckOutput(o.output, "text", "json", "yaml"); err != nil {
		return err
	}
	if o.from == "" || o.to == "" {
		return cli.Usagef("trace: give both --from and --to")
	}
	s := b.Snapshot()
	installed, err := trace.InstalledOf(b, acl.Installed)
	if err != nil {
		return err
	}
	r, err := o.ask(b, s, installed)
	if err != nil {
		return err
	}
	if o.output == "text" {
		err = writeTrace(e.Stdout, r)
	} else {
		err = cli.EncodeKind(e.Stdout, o.output, "Trace", r)
	}
	if err == nil && !r.Positive() {
		return cli.ErrNo
	}
	return err
}

// ask follows the flow. A host port leads to a pod; if another node than that of the client forwards, policy of the client decides about
// what it calls, and not about that pod.
func (o *traceOptions) ask(b *inspect.Bundle, s *model.Snapshot, installed trace.Installed) (*trace.Report, error) {
	t, ok := follow.Named{From: o.from, To: o.to, Protocol: o.protocol, Port: o.port}.HostPort(s)
	if !ok {
		f, err := cluster.Flow(s, o.from, o.to, o.protocol, o.port)
		if err != nil {
			return nil, err
		}
		return trace.Flow(b, s, f, installed), nil
	}
	r := trace.Flow(b, s, t.Ingress, installed)
	if t.Egress != t.Ingress && s.Owners().Pods[t.Egress.Src] != nil {
		r = trace.Forward(trace.Flow(b, s, t.Egress, installed), r)
	}
	t.Step.Text += "; a Service with this port would have precedence, and agents do not read Services"
	r.Prepend(*t.Step)
	return r, nil
}

func ruleset(b *inspect.Bundle) (*acl.Ruleset, error) {
	r := new(acl.Ruleset)
	if err := json.Unmarshal(b.Installed.Lists, r); err != nil {
		return nil, fmt.Errorf("read the ACLs of node %s: %w", b.About.Node, err)
	}
	return r, nil
}

func writeTrace(out io.Writer, r *trace.Report) error {
	at := r.Protocol
	if p, err := model.ParseProtocol(r.Protocol); err == nil && p.HasPorts() {
		at = fmt.Sprintf("%s %d", r.Protocol, r.Port)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s -> %s %s on node %s\nintended: %s, installed: %s", r.From, r.To, at, r.Node, r.Intended, r.Installed)
	if r.Drift {
		b.WriteString(": DRIFT")
	}
	b.WriteString("\n\n")
	for i, s := range r.Steps {
		fmt.Fprintf(&b, "%d. %s, %s:", i+1, s.What, s.Where)
		if s.Intended != "" {
			fmt.Fprintf(&b, " intended %s", s.Intended)
			if s.Cause != "" {
				fmt.Fprintf(&b, " (%s)", s.Cause)
			}
		}
		if s.Installed != "" {
			fmt.Fprintf(&b, ", installed %s", s.Installed)
			if s.By != "" {
				fmt.Fprintf(&b, " (%s)", s.By)
			}
		}
		if s.Text != "" {
			if s.Installed != "" {
				b.WriteString(",")
			}
			fmt.Fprintf(&b, " %s", s.Text)
		}
		if s.Drift {
			b.WriteString(": DRIFT")
		}
		b.WriteString("\n")
		for _, w := range s.Wrong {
			fmt.Fprintf(&b, "   %s\n", w)
		}
		for _, c := range s.Changes {
			fmt.Fprintf(&b, "   an edit that allows it: %s\n", c)
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}
