// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
	"github.com/isthmus-net/isthmus/common/analysis/ends"
	"github.com/isthmus-net/isthmus/common/analysis/service"
	"github.com/isthmus-net/isthmus/common/analysis/trace"
	"github.com/isthmus-net/isthmus/common/kube/agents"
	"github.com/isthmus-net/isthmus/common/model"
)

// Named is a flow by the names of its ends, as flags have them.
type Named struct{ From, To, Protocol, Port string }

// Target is a connection to follow. Egress is what the source calls, Ingress what the destination gets. They differ if another node
// than that of the source forwards.
type Target struct {
	Egress, Ingress model.Flow
	// Step is what a Service or a host port adds.
	Step *trace.Step
}

// Targets returns the flows: one, or one to each backend of a Service. There is at least one.
func (o Named) Targets(s *model.Snapshot, services *service.Services) ([]Target, error) {
	protocol, err := model.ParseProtocol(o.Protocol)
	if err != nil {
		return nil, cli.Usagef("--protocol: %w", err)
	}
	to, err := cluster.Service(services, o.From, o.To, "", o.Port, &protocol)
	if err != nil {
		return nil, fmt.Errorf("--to: %w", err)
	}
	port := o.Port
	if at, _, ok := cluster.OfNode(s, o.From, o.To, protocol, port); ok && to.Service == nil {
		var of model.ServicePort
		if to, of = services.AtNode(at.Addr(), protocol, at.Port()); to.Service != nil {
			port = strconv.Itoa(int(of.Port))
		}
	}
	if to.Service == nil {
		if t, ok := o.HostPort(s); ok {
			return []Target{t}, nil
		}
		f, err := cluster.Flow(s, o.From, o.To, o.Protocol, port)
		return []Target{{Egress: f, Ingress: f}}, err
	}
	from, err := ends.InUse(s, o.From)
	if err != nil {
		return nil, fmt.Errorf("--from: %w", err)
	}
	ports, err := cluster.Ports(to.Service, port, &protocol)
	if err != nil {
		return nil, err
	}
	var all []Target
	for _, port := range ports {
		found, err := services.Connections(to, port, from)
		if err != nil {
			return nil, fmt.Errorf("--to %s: %w", o.To, err)
		}
		for _, c := range found {
			all = append(all, Target{c.Egress, c.Ingress, serviceStep(to, port, c, len(found))})
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("--to: Service %s/%s has no ports", to.Service.Namespace, to.Service.Name)
	}
	return all, nil
}

// HostPort returns the connection to the pod that has the port of a node, and reports whether there is one. Services, which have
// precedence, are not known here.
func (o Named) HostPort(s *model.Snapshot) (Target, bool) {
	protocol, err := model.ParseProtocol(o.Protocol)
	if err != nil {
		return Target{}, false
	}
	at, from, ok := cluster.OfNode(s, o.From, o.To, protocol, o.Port)
	if !ok {
		return Target{}, false
	}
	c, ok := service.New(s, nil, nil).HostPort(at, protocol, from)
	to := netip.AddrPortFrom(c.Ingress.Dst, c.Ingress.Port)
	return Target{c.Egress, c.Ingress, &trace.Step{What: "host port", Where: c.Backend.Name,
		Text: fmt.Sprintf("the node with the address replaces %s %s by %s, and keeps the address of the client", protocol, at, to)}}, ok
}

// serviceStep describes how a connection to a Service reaches a backend.
func serviceStep(call service.Call, port model.ServicePort, c service.Connection, backends int) *trace.Step {
	s, b, f := call.Service, c.Backend, c.Ingress
	step := &trace.Step{What: "service", Where: s.Namespace + "/" + s.Name}
	to := netip.AddrPortFrom(f.Dst, f.Port)
	if s.Headless {
		step.Text = fmt.Sprintf("headless: DNS leads to %d backends, no NAT; this one is %s (%s)", backends, b.Name, to)
		return step
	}
	own := slices.IndexFunc(s.Addresses, func(a netip.Addr) bool { return a.Is4() == f.Dst.Is4() })
	address, node := "its address", "the source's node"
	switch {
	case call.NodePort != 0:
		address, node = netip.AddrPortFrom(call.To, call.NodePort).String(), "the node with the address"
	case call.To.IsValid():
		address = netip.AddrPortFrom(call.To, port.Port).String()
	case own >= 0:
		address = netip.AddrPortFrom(s.Addresses[own], port.Port).String()
	}
	step.Text = fmt.Sprintf("%s replaces %s by one of %d backends, chosen for each connection; here DNAT to %s (%s). Policy decides about the backend", node, address, backends, to, b.Name)
	if c.Egress.Dst != f.Dst {
		step.Text = strings.TrimSuffix(step.Text, "about the backend") + fmt.Sprintf("at the backend, and at the source about %s", c.Egress.Dst)
	}
	if f.Src == f.Dst {
		step.Text += "; the client is the backend, so the node also masquerades it: policy then sees the node"
	}
	if c.Hidden != "" {
		step.Text += fmt.Sprintf("; node %s also masquerades the client: ingress policy of the backend decides about %s", c.Hidden, c.Ingress.Src)
	}
	return step
}

// Trace has the nodes of both ends follow each flow, and combines their answers. list are the agents of the cluster. timeout
// bounds the answer of a node.
func Trace(ctx context.Context, c *agents.Cluster, list []agents.Agent, timeout time.Duration, snapshot *model.Snapshot,
	all []Target) ([]*trace.Report, error) {
	owners := snapshot.Owners()
	var calls []agents.Call
	of := make([][]int, len(all)) // the calls of each flow
	for i, t := range all {
		for _, one := range []struct {
			end  netip.Addr
			flow model.Flow
		}{{t.Egress.Src, t.Egress}, {t.Ingress.Dst, t.Ingress}} {
			pod := owners.Pods[one.end]
			if pod == nil || len(of[i]) == 1 && calls[of[i][0]].Node == pod.Node && t.Egress == t.Ingress {
				continue
			}
			at := slices.IndexFunc(list, func(a agents.Agent) bool { return a.Node == pod.Node })
			if at < 0 {
				return nil, fmt.Errorf("pod %s is on node %q, which the cluster does not have", pod.PodID, pod.Node)
			}
			of[i], calls = append(of[i], len(calls)), append(calls, agents.Call{Agent: list[at], Args: arguments(one.flow)})
		}
		if len(of[i]) == 0 {
			return nil, fmt.Errorf("%s -> %s: neither end is a pod, so no node decides", t.Egress.Src, t.Ingress.Dst)
		}
	}
	results := c.Run(ctx, timeout, calls)
	var reports []*trace.Report
	for i, t := range all {
		join := trace.Merge
		if t.Egress != t.Ingress {
			join = trace.Forward
		}
		r, err := combined(results, of[i], join)
		if err != nil {
			return nil, fmt.Errorf("%s -> %s: %w", t.Egress.Src, t.Ingress.Dst, err)
		}
		if t.Step != nil {
			r.Prepend(*t.Step)
		}
		reports = append(reports, r)
	}
	return reports, nil
}

// arguments are those of isthmusctl on a node that follows a flow.
func arguments(f model.Flow) []string {
	args := []string{"trace", "-o", "json", "--from", f.Src.String(), "--to", f.Dst.String(), "--protocol", strings.ToLower(f.Protocol.String())}
	if f.Protocol.HasPorts() {
		args = append(args, "--port", strconv.Itoa(int(f.Port)))
	}
	return args
}

// combined joins the reports of one or two nodes. If one of two does not answer, the other's report says so.
func combined(results []agents.Result, calls []int, join func(from, to *trace.Report) *trace.Report) (*trace.Report, error) {
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
		return join(found[0], found[1]), nil
	}
	if len(silent) > 0 {
		found[0].Steps = append(found[0].Steps, trace.Step{What: "other node", Where: "", Wrong: silent})
	}
	return found[0], nil
}
