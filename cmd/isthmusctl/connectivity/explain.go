// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/follow"
	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/analysis/service"
	"github.com/isthmus-net/isthmus/common/analysis/trace"
	"github.com/isthmus-net/isthmus/common/connectivity"
	"github.com/isthmus-net/isthmus/common/connectivity/probe"
	"github.com/isthmus-net/isthmus/common/kube/agents"
	"github.com/isthmus-net/isthmus/common/model"
)

const (
	// maxExplained bounds the flows of a phase that are explained: many flows fail for one reason.
	maxExplained = 8
	// answering bounds the time that a node, or the API server, needs for one answer.
	answering = 20 * time.Second
)

// explainer explains flows by the agents of the nodes, and without them by the policies alone.
type explainer struct {
	*options
	stderr io.Writer
	agents *agents.Cluster
	list   []agents.Agent
}

// explain writes Why of failed flows.
func (x *explainer) explain(ctx context.Context, namespace string, failed []*connectivity.Result) {
	source := cluster.Live(x.kubeconfig, x.context, x.as, x.groups, answering)
	snapshot, _, err := source.Load(ctx)
	if err != nil {
		for _, f := range failed {
			f.Why = []string{fmt.Sprintf("not explained: %v", err)}
		}
		return
	}
	services := service.New(snapshot, source.Services, source.EndpointSlices)
	for i, f := range failed {
		if i >= maxExplained {
			f.Why = []string{fmt.Sprintf("not explained: only %d flows of a phase are", maxExplained)}
			continue
		}
		f.Why = x.reasons(ctx, snapshot, services, namespace, f)
	}
}

// reasons explains one flow.
func (x *explainer) reasons(ctx context.Context, s *model.Snapshot, services *service.Services, namespace string, f *connectivity.Result) (lines []string) {
	named := destination(namespace, f)
	all, err := named.Targets(s, services)
	if err != nil {
		return []string{fmt.Sprintf("not explained: %v", err)}
	}
	passed := f.Flow.Blocked && f.Answer.State == probe.Answered
	reports, err := follow.Trace(ctx, x.agents, x.list, answering, s, all)
	for _, r := range reports {
		lines = append(lines, r.Reasons(passed)...)
	}
	if err != nil {
		lines = append(lines, fmt.Sprintf("the agents do not answer: %v", err))
		for _, t := range all {
			lines = append(lines, intended(f, explain.Forwarded(s, t.Egress, t.Ingress, nil, undecided)).Reasons(passed)...)
		}
	}
	return lines
}

// destination names a flow as isthmusctl trace does. A name that was not resolved leads to the DNS server.
func destination(namespace string, f *connectivity.Result) follow.Named {
	to := follow.Named{From: namespace + "/" + f.From, To: f.Flow.Target.Host, Protocol: f.Flow.Protocol().String(), Port: strconv.Itoa(int(f.Flow.Target.Port))}
	if f.Kind != connectivity.ToName {
		return to
	}
	to.To = "svc/" + namespace + "/" + f.To
	if f.Answer.State == probe.Lookup {
		to.To, to.Protocol, to.Port = "svc/kube-system/kube-dns", model.UDP.String(), "53"
		if host, port, err := net.SplitHostPort(f.Answer.Resolver); err == nil {
			to.To, to.Port = host, port
		}
	}
	return to
}

// undecided asks no data path.
func undecided(model.Flow) explain.Enforced { return nil }

// intended is what policy intends, in the form of a trace that no node has answered.
func intended(f *connectivity.Result, x *explain.Report) *trace.Report {
	r := &trace.Report{Node: f.FromNode + ", " + f.ToNode, From: x.From, To: x.To, Protocol: x.Protocol, Port: x.Port, Intended: x.Verdict, Installed: "unknown"}
	for _, s := range x.Sides {
		r.Steps = append(r.Steps, trace.Step{What: s.Direction + " policy", Where: s.Pod, Intended: s.Decision.Verdict, Installed: "unknown", Cause: s.Decision.Text})
	}
	return r
}
