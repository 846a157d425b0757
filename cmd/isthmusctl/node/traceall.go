// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
	"github.com/isthmus-net/isthmus/common/analysis/ends"
	"github.com/isthmus-net/isthmus/common/analysis/service"
	"github.com/isthmus-net/isthmus/common/analysis/trace"
	"github.com/isthmus-net/isthmus/common/kube/agents"
	"github.com/isthmus-net/isthmus/common/model"
)

// maxTraced bounds the backends of a Service that are followed.
const maxTraced = 32

// target is a flow to follow, with the step that a Service adds.
type target struct {
	flow model.Flow
	step *trace.Step
}

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
	all, err := o.targets(snapshot, service.New(snapshot, source.Services, source.EndpointSlices))
	if err != nil {
		return err
	}
	answer := traces{Left: max(0, len(all)-maxTraced)}
	all = all[:min(len(all), maxTraced)]
	if all[0].step != nil {
		answer.Service = all[0].step.Where
	}
	c, list, err := a.open(ctx, kubeconfig, s.timeout)
	if err != nil {
		return err
	}
	if answer.Traces, err = e.follow(ctx, c, list, s, snapshot, all); err != nil {
		return err
	}
	if o.output == "text" {
		err = plain(e.Stdout, func(out io.Writer) error { return writeTraces(out, &answer) })
	} else {
		err = cli.EncodeKind(e.Stdout, o.output, "Traces", &answer)
	}
	if err == nil && slices.ContainsFunc(answer.Traces, func(r *trace.Report) bool { return !r.Positive() }) {
		return cli.ErrNo
	}
	return err
}

// targets returns the flows that the flags name. There is at least one.
func (o *traceOptions) targets(s *model.Snapshot, services *service.Services) ([]target, error) {
	to, family, err := cluster.Service(services, o.from, o.to, "")
	if err != nil {
		return nil, fmt.Errorf("--to: %w", err)
	}
	if to == nil {
		f, err := cluster.Flow(s, o.from, o.to, o.protocol, o.port)
		return []target{{flow: f}}, err
	}
	protocol, err := model.ParseProtocol(o.protocol)
	if err != nil {
		return nil, cli.Usagef("--protocol: %w", err)
	}
	from, err := ends.Addresses(s, o.from)
	if err != nil {
		return nil, fmt.Errorf("--from: %w", err)
	}
	ports, err := cluster.Ports(to, o.port, &protocol)
	if err != nil {
		return nil, err
	}
	var all []target
	for _, port := range ports {
		backends, err := services.Backends(to, port)
		if err != nil {
			return nil, fmt.Errorf("--to: %w", err)
		}
		for _, b := range backends {
			f := model.Flow{Protocol: port.Protocol, Port: b.Port}
			if f.Src, f.Dst, err = ends.SameFamily(cluster.SameAs(family, from), cluster.SameAs(family, b.Addresses), port.Protocol); err != nil {
				return nil, fmt.Errorf("%s -> %s: %w", o.from, b.Name, err)
			}
			all = append(all, target{f, serviceStep(to, port, b, f, len(backends))})
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("--to: Service %s/%s has no ports", to.Namespace, to.Name)
	}
	return all, nil
}

// serviceStep describes how a connection to a Service reaches a backend.
func serviceStep(s *model.Service, port model.ServicePort, b service.Backend, f model.Flow, backends int) *trace.Step {
	step := &trace.Step{What: "service", Where: s.Namespace + "/" + s.Name}
	to := netip.AddrPortFrom(f.Dst, f.Port)
	if s.Headless {
		step.Text = fmt.Sprintf("headless: DNS leads to %d backends, no NAT; this one is %s (%s)", backends, b.Name, to)
		return step
	}
	own := slices.IndexFunc(s.Addresses, func(a netip.Addr) bool { return a.Is4() == f.Dst.Is4() })
	address := "its address"
	if own >= 0 {
		address = netip.AddrPortFrom(s.Addresses[own], port.Port).String()
	}
	step.Text = fmt.Sprintf("the source's node replaces %s by one of %d backends, chosen for each connection; here DNAT to %s (%s). Policy decides about the backend", address, backends, to, b.Name)
	if f.Src == f.Dst {
		step.Text += "; the client is the backend, so the node also masquerades it: policy then sees the node"
	}
	return step
}

// follow asks the nodes of both ends of each flow, and combines their answers.
func (e env) follow(ctx context.Context, c *agents.Cluster, list []agents.Agent, s *shared, snapshot *model.Snapshot, all []target) ([]*trace.Report, error) {
	owners := snapshot.Owners()
	var calls []agents.Call
	of := make([][]int, len(all)) // the calls of each flow
	for i, t := range all {
		for _, end := range []netip.Addr{t.flow.Src, t.flow.Dst} {
			pod := owners.Pods[end]
			if pod == nil || len(of[i]) == 1 && calls[of[i][0]].Node == pod.Node {
				continue
			}
			at := slices.IndexFunc(list, func(a agents.Agent) bool { return a.Node == pod.Node })
			if at < 0 {
				return nil, fmt.Errorf("pod %s is on node %q, which the cluster does not have", pod.PodID, pod.Node)
			}
			args := []string{"trace", "-o", "json", "--from", t.flow.Src.String(), "--to", t.flow.Dst.String(), "--protocol", strings.ToLower(t.flow.Protocol.String())}
			if t.flow.Protocol.HasPorts() {
				args = append(args, "--port", strconv.Itoa(int(t.flow.Port)))
			}
			of[i], calls = append(of[i], len(calls)), append(calls, agents.Call{Agent: list[at], Args: args})
		}
		if len(of[i]) == 0 {
			return nil, fmt.Errorf("%s -> %s: neither end is a pod, so no node decides", t.flow.Src, t.flow.Dst)
		}
	}
	results := c.Run(ctx, s.timeout, calls)
	var reports []*trace.Report
	for i, t := range all {
		r, err := combined(results, of[i])
		if err != nil {
			return nil, fmt.Errorf("%s -> %s: %w", t.flow.Src, t.flow.Dst, err)
		}
		if t.step != nil {
			r.Prepend(*t.step)
		}
		reports = append(reports, r)
	}
	return reports, nil
}

// combined returns the report of one or two nodes. If one of two does not answer, the other's report says so.
func combined(results []agents.Result, calls []int) (*trace.Report, error) {
	var found []*trace.Report
	var silent []string
	for _, n := range calls {
		r, err := results[n], results[n].Err
		report := &trace.Report{}
		if err == nil {
			err = json.Unmarshal(r.Output, report)
		}
		if err != nil {
			silent = append(silent, fmt.Sprintf("node %s: no answer: %v", r.Node, err))
			continue
		}
		found = append(found, report)
	}
	switch {
	case len(found) == 0:
		return nil, fmt.Errorf("%s", strings.Join(silent, "; "))
	case len(found) == 2:
		return trace.Merge(found[0], found[1]), nil
	}
	if len(silent) > 0 {
		found[0].Steps = append(found[0].Steps, trace.Step{What: "other node", Where: "", Wrong: silent})
	}
	return found[0], nil
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
