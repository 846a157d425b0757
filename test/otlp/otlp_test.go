// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/api/hubble/relay"
	"github.com/isthmus-net/isthmus/common/relay/otlp"
)

// collector is the server of the collector's own receiver. It keeps what it gets.
type collector struct {
	plogotlp.UnimplementedGRPCServer
	mutex sync.Mutex
	calls int
	logs  []plog.Logs
}

// Export implements plogotlp.GRPCServer.
func (c *collector) Export(_ context.Context, r plogotlp.ExportRequest) (plogotlp.ExportResponse, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.calls++
	kept := plog.NewLogs()
	r.Logs().CopyTo(kept)
	c.logs = append(c.logs, kept)
	return plogotlp.NewExportResponse(), nil
}

// received is a record with the attributes of its resource.
type received struct {
	event, severity, body string
	number                plog.SeverityNumber
	at, observed          time.Time
	attributes, resource  map[string]any
	scope                 string
}

// records decodes all records with the accessors of pdata.
func (c *collector) records() (list []received) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, l := range c.logs {
		list = append(list, recordsOf(l)...)
	}
	return list
}

func recordsOf(l plog.Logs) (list []received) {
	for _, resource := range l.ResourceLogs().All() {
		for _, scope := range resource.ScopeLogs().All() {
			for _, r := range scope.LogRecords().All() {
				list = append(list, received{event: r.EventName(), severity: r.SeverityText(), number: r.SeverityNumber(), body: text(r.Body()),
					at: r.Timestamp().AsTime(), observed: r.ObservedTimestamp().AsTime(), attributes: r.Attributes().AsRaw(),
					resource: resource.Resource().Attributes().AsRaw(), scope: scope.Scope().Name() + " " + scope.Scope().Version()})
			}
		}
	}
	return list
}

func text(v pcommon.Value) string {
	if v.Type() != pcommon.ValueTypeStr {
		return "not a string: " + v.AsString()
	}
	return v.Str()
}

var start = time.Date(2026, 11, 23, 12, 0, 0, 5, time.UTC)

// answers are those of Hubble's interface: flows of two nodes, a report of lost ones, and a state of a node.
func answers() []*observer.GetFlowsResponse {
	at := timestamppb.New(start)
	denied := &flow.Flow{Time: at, Verdict: flow.Verdict_DROPPED, Uuid: "id-1", TrafficDirection: flow.TrafficDirection_INGRESS, DropReasonDesc: flow.DropReason_POLICY_DENIED,
		IP:     &flow.IP{Source: "2001:db8::1", Destination: "2001:db8::2", IpVersion: flow.IPVersion_IPv6},
		L4:     &flow.Layer4{Protocol: &flow.Layer4_TCP{TCP: &flow.TCP{SourcePort: 40000, DestinationPort: 5432}}},
		Source: &flow.Endpoint{Namespace: "shop", PodName: "web-1"}, Destination: &flow.Endpoint{Namespace: "shop", PodName: "db-0"},
		IngressDeniedBy: []*flow.Policy{{Kind: "NetworkPolicy", Namespace: "shop", Name: "db"}}, PolicyLog: []string{"no rule accepts"}}
	allowed := &flow.Flow{Time: at, Verdict: flow.Verdict_FORWARDED, Uuid: "id-2", TrafficDirection: flow.TrafficDirection_EGRESS,
		IP: &flow.IP{Source: "10.0.0.1", Destination: "192.0.2.1", IpVersion: flow.IPVersion_IPv4},
		L4: &flow.Layer4{Protocol: &flow.Layer4_UDP{UDP: &flow.UDP{SourcePort: 40001, DestinationPort: 53}}}}
	return []*observer.GetFlowsResponse{
		{Time: at, NodeName: "n1", ResponseTypes: &observer.GetFlowsResponse_Flow{Flow: denied}},
		{Time: at, NodeName: "n2", ResponseTypes: &observer.GetFlowsResponse_Flow{Flow: allowed}},
		{Time: at, NodeName: "n1", ResponseTypes: &observer.GetFlowsResponse_LostEvents{LostEvents: &flow.LostEvent{Source: flow.LostEventSource_HUBBLE_RING_BUFFER, NumEventsLost: 7}}},
		{Time: at, ResponseTypes: &observer.GetFlowsResponse_NodeStatus{NodeStatus: &relay.NodeStatusEvent{StateChange: relay.NodeState_NODE_UNAVAILABLE, NodeNames: []string{"n3"}, Message: "no answer"}}},
	}
}

// export sends answers with the exporter of the relay until the collector has as many records.
func export(t *testing.T, c *collector, list []*observer.GetFlowsResponse) []received {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	plogotlp.RegisterGRPCServer(server, c)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	e, err := otlp.New(otlp.Config{Endpoint: l.Addr().String(), Transport: insecure.NewCredentials(), Cluster: "prod", Version: "1.2.3", Queue: 10000},
		prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		e.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	for _, a := range list {
		e.Add(a)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if got := c.records(); len(got) >= len(list) || time.Now().After(deadline) {
			return got
		}
	}
}

// TestRecords checks each field of each kind of record, as the collector sees it.
func TestRecords(t *testing.T) {
	got := export(t, &collector{}, answers())
	if len(got) != 4 {
		t.Fatalf("%d records: %+v", len(got), got)
	}
	byEvent := make(map[string]received)
	for _, r := range got {
		key := r.event
		if id, ok := r.attributes["isthmus.flow.id"]; ok {
			key = fmt.Sprint(id)
		}
		byEvent[key] = r
		node := map[string]any{"id-1": "n1", "id-2": "n2", "isthmus.lost": "n1", "isthmus.nodes": nil}[key]
		want := map[string]any{"service.name": "isthmus-relay", "service.version": "1.2.3", "k8s.cluster.name": "prod"}
		if node != nil {
			want["k8s.node.name"] = node
		}
		if !maps.Equal(r.resource, want) || r.scope != "github.com/isthmus-net/isthmus 1.2.3" || !r.at.Equal(start) || time.Since(r.observed) > time.Minute {
			t.Errorf("%s: resource %v, scope %q, time %s, observed %s", key, r.resource, r.scope, r.at, r.observed)
		}
	}
	for key, want := range map[string]struct {
		event, severity string
		number          plog.SeverityNumber
		attributes      map[string]any
	}{
		"id-1": {"isthmus.flow", "WARN", plog.SeverityNumberWarn, map[string]any{"isthmus.verdict": "dropped", "isthmus.direction": "ingress", "isthmus.flow.count": int64(1),
			"isthmus.drop_reason": "policy_denied", "network.transport": "tcp", "network.type": "ipv6", "source.address": "2001:db8::1", "source.port": int64(40000),
			"destination.address": "2001:db8::2", "destination.port": int64(5432)}},
		"id-2":          {"isthmus.flow", "INFO", plog.SeverityNumberInfo, map[string]any{"isthmus.verdict": "forwarded", "network.transport": "udp", "network.type": "ipv4", "destination.port": int64(53)}},
		"isthmus.lost":  {"isthmus.lost", "WARN", plog.SeverityNumberWarn, map[string]any{"isthmus.lost.count": int64(7), "isthmus.lost.source": "HUBBLE_RING_BUFFER"}},
		"isthmus.nodes": {"isthmus.nodes", "WARN", plog.SeverityNumberWarn, map[string]any{"isthmus.nodes.state": "node_unavailable"}},
	} {
		r, ok := byEvent[key]
		if !ok || r.event != want.event || r.severity != want.severity || r.number != want.number || r.body == "" {
			t.Errorf("%s: %+v", key, r)
		}
		for name, value := range want.attributes {
			if r.attributes[name] != value {
				t.Errorf("%s: %s is %#v, want %#v; all: %v", key, name, r.attributes[name], value, r.attributes)
			}
		}
	}
	if by, _ := byEvent["id-1"].attributes["isthmus.policy.denied_by"].([]any); !slices.Equal(by, []any{"NetworkPolicy shop/db"}) {
		t.Errorf("denied by %v", by)
	}
	if names, _ := byEvent["isthmus.nodes"].attributes["isthmus.nodes.names"].([]any); !slices.Equal(names, []any{"n3"}) {
		t.Errorf("nodes %v", names)
	}
}

// TestMany sends more records than fit into a request, and encodes what arrived again: nothing is lost in pdata.
func TestMany(t *testing.T) {
	var list []*observer.GetFlowsResponse
	want := make(map[string]bool)
	for n := range 3000 {
		id := fmt.Sprint("id-", n)
		want[id] = true
		list = append(list, &observer.GetFlowsResponse{Time: timestamppb.New(start), NodeName: fmt.Sprint("n", n%3), ResponseTypes: &observer.GetFlowsResponse_Flow{
			Flow: &flow.Flow{Uuid: id, Verdict: flow.Verdict_DROPPED, Summary: "caf\u00e9 \xff"}}})
	}
	c := &collector{}
	got := export(t, c, list)
	for _, r := range got {
		id, _ := r.attributes["isthmus.flow.id"].(string)
		if !want[id] {
			t.Fatalf("record %q is not expected, or comes twice", id)
		}
		delete(want, id)
	}
	if len(want) > 0 || c.calls < 3 {
		t.Errorf("%d records are missing after %d calls", len(want), c.calls)
	}
	var again []received
	for _, l := range c.logs {
		text, err := (&plog.JSONMarshaler{}).MarshalLogs(l)
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := (&plog.JSONUnmarshaler{}).UnmarshalLogs(text)
		if err != nil {
			t.Fatal(err)
		}
		again = append(again, recordsOf(decoded)...)
	}
	if len(again) != len(list) {
		t.Fatalf("%d records after JSON, want %d", len(again), len(list))
	}
	for i, r := range again {
		if !reflect.DeepEqual(r, got[i]) {
			t.Fatalf("after JSON record %d is %+v, want %+v", i, r, got[i])
		}
	}
	fmt.Printf("otlp: records=%d calls=%d, each decoded with pdata, and again after JSON\n", len(again), c.calls)
}
