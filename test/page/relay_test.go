// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/analysis/complete"
	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/analysis/usage"
	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	hubblerelay "github.com/isthmus-net/isthmus/common/api/hubble/relay"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/page"
	"github.com/isthmus-net/isthmus/common/relay/web"
)

// relay has two kept flows and one node, and five new flows a second. It knows the objects of a directory, and its nodes enforce
// something else. The tests of common/relay are about the real one.
type relay struct{ cluster *page.Cluster }

// authorization is the header of user any with password token.
const authorization = "Basic YW55OnRva2Vu"

func (relay) check(ctx context.Context) error {
	if fmt.Sprint(metadata.ValueFromIncomingContext(ctx, "authorization")) != "["+authorization+"]" {
		return status.Error(codes.Unauthenticated, "the token is missing or not valid")
	}
	return nil
}

func (r relay) GetFlows(q *observer.GetFlowsRequest, s grpc.ServerStreamingServer[observer.GetFlowsResponse]) error {
	if err := r.check(s.Context()); err != nil {
		return err
	}
	return sendFlows(q, s)
}

// agent has the flows of the relay, for every client.
type agent struct {
	observer.UnimplementedObserverServer
}

func (agent) GetFlows(q *observer.GetFlowsRequest, s grpc.ServerStreamingServer[observer.GetFlowsResponse]) error {
	return sendFlows(q, s)
}

// serveAgent serves an agent until the test ends, and returns its socket.
func serveAgent(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "run", "agent.sock")
	l, err := socket.Listen(socket.Hubble(path))
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	observer.RegisterObserverServer(g, agent{})
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return path
}

// sendFlows sends two kept flows, or five new ones a second.
func sendFlows(q *observer.GetFlowsRequest, s grpc.ServerStreamingServer[observer.GetFlowsResponse]) error {
	err := s.Send(&observer.GetFlowsResponse{ResponseTypes: &observer.GetFlowsResponse_NodeStatus{
		NodeStatus: &hubblerelay.NodeStatusEvent{StateChange: hubblerelay.NodeState_NODE_CONNECTED, NodeNames: []string{"n1"}}}})
	for n := 0; err == nil; n++ {
		if !q.GetFollow() && n == 2 {
			return nil
		}
		err = s.Send(&observer.GetFlowsResponse{Time: timestamppb.Now(), NodeName: "n1", ResponseTypes: &observer.GetFlowsResponse_Flow{Flow: &flow.Flow{
			Source: &flow.Endpoint{Namespace: "shop", PodName: fmt.Sprintf("web-%d<script>alert(1)</script>", n)}, Destination: &flow.Endpoint{Namespace: "pay", PodName: "api"},
			Summary: "isolated for ingress by NetworkPolicy pay/api, no rule accepts", L4: &flow.Layer4{Protocol: &flow.Layer4_TCP{TCP: &flow.TCP{DestinationPort: 443}}}}}})
		if q.GetFollow() {
			select {
			case <-s.Context().Done():
				return s.Context().Err()
			case <-time.After(200 * time.Millisecond):
			}
		}
	}
	return err
}

func (r relay) AllowNodes(ctx context.Context) error { return r.check(ctx) }

func (r relay) Agents(ctx context.Context) (map[string]page.Agent, error) {
	return map[string]page.Agent{"n1": {Ready: true, OS: model.Linux, Version: "v1", Platform: "kernel 6.1", Modes: []string{"pods: tcx (3)"}, Repairs: []string{"rows: row 3"}},
		"n2": {OS: model.Windows, Version: "v1", Problems: []string{"the disk is full"}}, "n3": {Error: "connection refused"}}, r.check(ctx)
}

// Usage counts flows of every policy on n1, and packets on n2. Node n3 does not answer.
func (r relay) Usage(ctx context.Context, _ string) (*usage.Total, error) {
	answer := func(os model.OS) usage.Answer {
		p := &usage.Policies{Unit: usage.UnitOf(os), Uncounted: &usage.Rest{Default: 3}}
		for _, known := range r.cluster.Snapshot.SortedPolicies() {
			item := usage.Policy{Policy: known.Origin.String(), Pods: 1, Allowed: new(uint64), Denied: new(uint64)}
			*item.Allowed, *item.Denied = 7, 5
			for i := range known.Rules[model.Ingress] {
				item.Rules = append(item.Rules, usage.Rule{Direction: model.Ingress.String(), Rule: &i, Allowed: 7})
			}
			p.Items = append(p.Items, item)
		}
		return usage.Answer{OS: os, Policies: p}
	}
	linux, windows := answer(model.Linux), answer(model.Windows)
	linux.Node, windows.Node = "n1", "n2"
	windows.Unsupported = []model.Unsupported{{Policy: r.cluster.Snapshot.SortedPolicies()[0].Origin, Construct: "SCTP", OS: model.Windows, Platform: "hns 9.5", Reason: "this HNS refuses it"}}
	return usage.Sum([]usage.Answer{linux, windows, {Node: "n3", OS: model.Linux, Why: "connection refused"}}), r.check(ctx)
}

func (r relay) AllowNamespaces(ctx context.Context, _ ...string) error { return r.check(ctx) }

func (r relay) AllowEnds(ctx context.Context, _ *model.Snapshot, _ ...string) error {
	return r.check(ctx)
}

func (relay) Refresh(context.Context) error { return nil }

func (r relay) Objects() *page.Cluster { return r.cluster }

func (relay) Notes(context.Context) []string {
	return []string{"1 of 3 nodes do not answer, so that what they enforce is not known: n3"}
}

func (r relay) Explain(ctx context.Context, s *model.Snapshot, f model.Flow) (*explain.Report, error) {
	x := explain.Flow(s, f, nil, nil)
	for i := range x.Sides {
		x.Sides[i].Enforced = []explain.Enforcement{{Platform: "kernel 6.1", Verdict: "allow", Reasons: []string{"rows: row 3 differs"}}}
		x.Sides[i].Notes = []string{"node n3 does not answer: this is what the policies say. What it enforces is not known"}
	}
	return x, r.check(ctx)
}

// readObjects reads the objects of a directory.
func readObjects(t *testing.T, dir string) *page.Cluster {
	o, _, errs := manifests.Reading{Limits: manifests.DefaultLimits()}.Dir(t.Context(), dir)
	if len(errs) > 0 {
		t.Fatal(errs[0])
	}
	complete.Place(&o)
	return &page.Cluster{Snapshot: o.Snapshot(), Source: "The objects that an agent knows", At: time.Now()}
}

// serveRelay serves the pages of a relay until the test ends, and returns their address.
func serveRelay(t *testing.T, manifests string) string {
	r := relay{readObjects(t, manifests)}
	h, err := web.New(r, r)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(h)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s.URL + "/"
}
