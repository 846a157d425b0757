// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/access"
	"github.com/isthmus-net/isthmus/common/analysis/usage"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/page"
	"github.com/isthmus-net/isthmus/common/relay/redact"
)

const (
	// keepReports is how long reports of nodes are used without asking for newer ones, and oldReports how long while newer
	// ones are awaited.
	keepReports, oldReports = 10 * time.Second, 30 * time.Second
	// waitReports bounds the wait of a page, reportTimeout that for one node, and collectTimeout that for all.
	waitReports, reportTimeout, collectTimeout = 5 * time.Second, 5 * time.Second, 20 * time.Second
	// maxReport bounds the report of a node in bytes. maxReporting bounds the requests at a time.
	maxReport, maxReporting = 4 << 20, 16
	// maxTexts and maxText bound what is kept of a list of texts.
	maxTexts, maxText = 20, 500
)

// reports are what nodes report. Readers share them.
type reports struct {
	mutex   sync.Mutex
	newest  *collected
	running chan struct{} // closed when newer ones are there; nil if no request runs
}

// collected are the reports of all nodes at a moment. It is not changed.
type collected struct {
	at     time.Time
	agents map[string]page.Agent
	total  *usage.Total
}

// AllowNodes returns an error unless the client of a call may read data of nodes.
func (r *Relay) AllowNodes(ctx context.Context) error {
	return r.require(ctx, access.Right{Verb: access.Get, Resource: access.Nodes})
}

// Agents returns what agents report about their nodes, to a client who may read data of nodes.
func (r *Relay) Agents(ctx context.Context) (map[string]page.Agent, error) {
	if err := r.AllowNodes(ctx); err != nil {
		return nil, err
	}
	c, err := r.collected(ctx)
	if err != nil {
		return nil, err
	}
	return c.agents, nil
}

// Usage returns how often the policies of a namespace have decided, and what nodes do not enforce exactly of them, as far as the
// client may see it. An empty namespace stands for all, and needs the right for all.
func (r *Relay) Usage(ctx context.Context, namespace string) (*usage.Total, error) {
	var names []string
	if namespace != "" {
		names = append(names, namespace)
	}
	scope, err := r.reader(ctx, names...)
	if err != nil {
		return nil, r.refusal(err)
	}
	c, err := r.collected(ctx)
	if err != nil {
		return nil, err
	}
	return redact.Usage(scope, c.total), nil
}

// collected returns the last reports, and begins to ask for newer ones if they are old.
func (r *Relay) collected(ctx context.Context) (*collected, error) {
	o := &r.reports
	o.mutex.Lock()
	newest := o.newest
	if o.running == nil && (newest == nil || time.Since(newest.at) >= keepReports) {
		o.running = make(chan struct{})
		go r.collect()
	}
	running := o.running
	o.mutex.Unlock()
	if running == nil || newest != nil && time.Since(newest.at) < oldReports {
		return newest, nil
	}
	late := time.NewTimer(waitReports)
	defer late.Stop()
	select {
	case <-running:
	case <-late.C:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if o.newest == nil || time.Since(o.newest.at) >= oldReports {
		return nil, status.Error(codes.Unavailable, "the nodes have not answered yet: load the page again in a moment")
	}
	return o.newest, nil
}

// collect asks all nodes for their reports.
func (r *Relay) collect() {
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	var mutex sync.Mutex // of the sum and the agents
	var sum usage.Adder
	agents := make(map[string]page.Agent)
	tokens := make(chan struct{}, maxReporting)
	var asking sync.WaitGroup
	for _, n := range r.pool.list() {
		tokens <- struct{}{}
		asking.Go(func() {
			defer func() { <-tokens }()
			report, err := n.report(ctx)
			answer, agent := usage.Answer{Node: n.name, OS: r.systemOf(n.name)}, page.Agent{}
			if err != nil {
				r.log.Warn("read the report of an agent", "node", n.name, "error", err)
				answer.Why = clip(why(err))
				agent.Error = answer.Why
			} else {
				answer, agent = answerOf(n.name, report), agentOf(report)
			}
			mutex.Lock()
			defer mutex.Unlock()
			sum.Add(&answer)
			agents[n.name] = agent
		})
	}
	asking.Wait()
	o := &r.reports
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.newest = &collected{time.Now(), agents, sum.Total()}
	close(o.running)
	o.running = nil
}

// systemOf returns the operating system of a node as far as its object tells.
func (r *Relay) systemOf(name string) model.OS {
	if c := r.Objects(); c != nil {
		if n, ok := c.Snapshot.Nodes.Get(name); ok {
			return systemName(n.OS)
		}
	}
	return usage.Unknown
}

func systemName(os model.OS) model.OS {
	if os == model.Linux || os == model.Windows {
		return os
	}
	return usage.Unknown
}

// why says why a node gives no report.
func why(err error) string {
	if status.Code(err) == codes.Unimplemented {
		return "its agent is older than the relay, and reports nothing: update it"
	}
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// report reads the report of a node.
func (n *node) report(ctx context.Context) (*usage.Report, error) {
	if n.conn == nil {
		return nil, errNoPort
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	stream, err := isthmusv1.NewExplainClient(n.conn).GetReport(ctx, &isthmusv1.GetReportRequest{})
	if err != nil {
		return nil, err
	}
	var data []byte
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if data = append(data, m.GetData()...); len(data) > maxReport {
			return nil, fmt.Errorf("the report is larger than %d bytes", maxReport)
		}
	}
	report := new(usage.Report)
	if err := json.Unmarshal(data, report); err != nil {
		return nil, fmt.Errorf("read the report: %w", err)
	}
	if report.About.Node != n.name {
		return nil, errors.New("the agent reports about another node")
	}
	return report, nil
}

// answerOf returns what a node reports about policies. Its entries name their systems as the node does.
func answerOf(name string, report *usage.Report) usage.Answer {
	os := systemName(report.About.OS)
	for i := range report.About.Unsupported {
		u := &report.About.Unsupported[i]
		u.OS, u.Construct, u.Platform, u.Reason = os, clip(u.Construct), clip(u.Platform), clip(u.Reason)
	}
	report.Policies.Notes = clipAll(report.Policies.Notes)
	for i := range report.Policies.Items {
		p := &report.Policies.Items[i]
		p.Policy = clip(p.Policy)
		for j := range p.Rules {
			p.Rules[j].Direction, p.Rules[j].Name = clip(p.Rules[j].Direction), clip(p.Rules[j].Name)
		}
	}
	return usage.Answer{Node: name, OS: os, Policies: &report.Policies, Unsupported: report.About.Unsupported, Unlisted: report.Unlisted}
}

// agentOf returns what a node reports about itself.
func agentOf(report *usage.Report) page.Agent {
	a := &report.About
	return page.Agent{Ready: a.Ready, OS: systemName(a.OS), Version: clip(a.Version), Platform: clip(a.Platform),
		Endpoints: report.Endpoints, Modes: clipAll(a.Modes),
		Problems: clipAll(a.Problems), Repairs: clipAll(a.Repairs)}
}

func clipAll(all []string) []string {
	var texts []string
	for _, t := range all[:min(len(all), maxTexts)] {
		texts = append(texts, clip(t))
	}
	if over := len(all) - maxTexts; over > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", over))
	}
	return texts
}

func clip(text string) string { return text[:min(len(text), maxText)] }
