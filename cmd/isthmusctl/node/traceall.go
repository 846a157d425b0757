// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/follow"
	"github.com/isthmus-net/isthmus/common/analysis/service"
	"github.com/isthmus-net/isthmus/common/analysis/trace"
	"github.com/isthmus-net/isthmus/common/model"
)

// maxTraced bounds the backends of a Service that are followed.
const maxTraced = 32

// traces is the answer for all nodes.
type traces struct {
	// Service is set if the destination is one.
	Service string          `json:"service,omitempty"`
	Traces  []*trace.Report `json:"traces"`
	// Left is the number of backends that were not followed.
	Left int `json:"left,omitempty"`
}

// traceAll follows a flow, or one to each backend of a Service, on the nodes of both ends.
func (e env) traceAll(ctx context.Context, a *allNodes, s *shared, o *traceOptions, kubeconfig string) error {
	if err := cli.CheckOutput(o.output, "text", "json", "yaml"); err != nil {
		return err
	}
	if o.from == "" || o.to == "" {
		return cli.Usagef("trace: give both --from and --to")
	}
	source := cluster.Live(kubeconfig, a.context, a.as, a.groups, s.timeout)
	snapshot, err := source.Open(ctx, e.Stderr)
	if err != nil {
		return err
	}
	named := follow.Named{From: o.from, To: o.to, Protocol: o.protocol, Port: o.port}
	all, err := named.Targets(snapshot, service.New(snapshot, source.Services, source.EndpointSlices))
	if err != nil {
		return err
	}
	answer := traces{Left: max(0, len(all)-maxTraced)}
	all = all[:min(len(all), maxTraced)]
	if all[0].Step != nil {
		answer.Service = all[0].Step.Where
	}
	c, list, err := a.open(ctx, e.Stderr, kubeconfig, s.timeout)
	if err != nil {
		return err
	}
	if answer.Traces, err = follow.Trace(ctx, c, list, s.timeout, snapshot, all); err != nil {
		return err
	}
	if o.output == "text" {
		err = cli.Plain(e.Stdout, func(out io.Writer) error { return writeTraces(out, &answer) })
	} else {
		err = cli.EncodeKind(e.Stdout, o.output, "Traces", &answer)
	}
	if err == nil && slices.ContainsFunc(answer.Traces, func(r *trace.Report) bool { return !r.Positive() }) {
		return cli.ErrNo
	}
	return err
}

func writeTraces(out io.Writer, all *traces) error {
	if all.Service != "" {
		denied, drift := 0, 0
		for _, r := range all.Traces {
			if r.Drift {
				drift++
			}
			if r.Intended == model.Deny.String() || r.Installed == model.Deny.String() {
				denied++
			}
		}
		fmt.Fprintf(out, "Service %s: %d of %d backends denied, %d with drift\n\n", all.Service, denied, len(all.Traces), drift)
	}
	for i, r := range all.Traces {
		if i > 0 {
			fmt.Fprintln(out)
		}
		if err := writeTrace(out, r); err != nil {
			return err
		}
	}
	if all.Left > 0 {
		fmt.Fprintf(out, "\n%d more backends were not followed: isthmusctl explain answers for all\n", all.Left)
	}
	return nil
}
