// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	commonv1 "go.opentelemetry.io/proto/slim/otlp/common/v1"
	logsv1 "go.opentelemetry.io/proto/slim/otlp/logs/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/api/hubble/relay"
)

var start = time.Date(2026, 11, 23, 12, 0, 0, 5, time.UTC)

// answer is a denied flow with everything that an agent reports. Its number is its identifier.
func answer(n int) *observer.GetFlowsResponse {
	at := timestamppb.New(start.Add(time.Duration(n)))
	f := &flow.Flow{Time: at, Verdict: flow.Verdict_DROPPED, Uuid: fmt.Sprint(n), NodeName: "n1", TrafficDirection: flow.TrafficDirection_INGRESS, DropReasonDesc: flow.DropReason_POLICY_DENIED,
		IP: &flow.IP{Source: "2001:db8::1", Destination: "2001:db8::2", IpVersion: flow.IPVersion_IPv6, SourceXlated: "2001:db8::3"},
		L4: &flow.Layer4{Protocol: &flow.Layer4_TCP{TCP: &flow.TCP{SourcePort: 40000, DestinationPort: 5432}}},
		Source: &flow.Endpoint{Namespace: "shop", PodName: "web-1", Labels: []string{"k8s:app=web"},
			Workloads: []*flow.Workload{{Name: "web", Kind: "Deployment"}}},
		Destination: &flow.Endpoint{Namespace: "shop", PodName: "db-0"}, DestinationService: &flow.Service{Namespace: "shop", Name: "db"},
		IngressDeniedBy: []*flow.Policy{{Kind: "NetworkPolicy", Namespace: "shop", Name: "db"}, {Kind: "AdminNetworkPolicy", Name: "edge"}},
		PolicyLog:       []string{"no rule accepts"}, Summary: "isolated for ingress"}
	return &observer.GetFlowsResponse{Time: at, NodeName: "n1", ResponseTypes: &observer.GetFlowsResponse_Flow{Flow: f}}
}

func lostAnswer(n uint64) *observer.GetFlowsResponse {
	return &observer.GetFlowsResponse{Time: timestamppb.New(start), NodeName: "n1", ResponseTypes: &observer.GetFlowsResponse_LostEvents{
		LostEvents: &flow.LostEvent{Source: flow.LostEventSource_HUBBLE_RING_BUFFER, NumEventsLost: n}}}
}

// value returns an attribute as text.
func value(v *commonv1.AnyValue) string {
	switch x := v.GetValue().(type) {
	case *commonv1.AnyValue_StringValue:
		return x.StringValue
	case *commonv1.AnyValue_IntValue:
		return fmt.Sprint(x.IntValue)
	case *commonv1.AnyValue_ArrayValue:
		var all []string
		for _, e := range x.ArrayValue.GetValues() {
			all = append(all, value(e))
		}
		return strings.Join(all, ", ")
	}
	return "?"
}

// lines returns a record as lines.
func lines(r *logsv1.LogRecord) []string {
	all := []string{fmt.Sprintf("%s %s %s %d", r.GetEventName(), r.GetSeverityText(), r.GetSeverityNumber(), r.GetTimeUnixNano()), value(r.GetBody())}
	for _, a := range r.GetAttributes() {
		all = append(all, a.GetKey()+"="+value(a.GetValue()))
	}
	return all
}

func TestRecord(t *testing.T) {
	allowed := answer(0)
	f := allowed.GetFlow()
	f.Verdict, f.DropReasonDesc, f.IngressDeniedBy, f.PolicyLog, f.Summary = flow.Verdict_FORWARDED, 0, nil, nil, ""
	f.L4 = &flow.Layer4{Protocol: &flow.Layer4_ICMPv4{ICMPv4: &flow.ICMPv4{Type: 8}}}
	f.IP = &flow.IP{Destination: "192.0.2.1", IpVersion: flow.IPVersion_IPv4}
	f.Source = &flow.Endpoint{Namespace: "shop", Workloads: []*flow.Workload{{Name: "web", Kind: "Deployment"}}}
	f.Destination, f.DestinationService, f.Uuid = &flow.Endpoint{Identity: 2, Labels: []string{"reserved:world"}}, nil, ""
	f.Aggregate = &flow.Aggregate{IngressFlowCount: 3, EgressFlowCount: 2, UnknownDirectionFlowCount: 2}
	status := &observer.GetFlowsResponse{Time: timestamppb.New(start), ResponseTypes: &observer.GetFlowsResponse_NodeStatus{
		NodeStatus: &relay.NodeStatusEvent{StateChange: relay.NodeState_NODE_UNAVAILABLE, NodeNames: []string{"n2", "n3"}, Message: "refused"}}}
	for name, c := range map[string]struct {
		answer *observer.GetFlowsResponse
		want   []string
	}{
		"denied": {answer(7), []string{"isthmus.flow WARN SEVERITY_NUMBER_WARN 1795435200000000012", "shop/web-1 -> shop/db-0:5432 tcp DROPPED isolated for ingress",
			"isthmus.flow.id=7", "isthmus.flow.count=1", "isthmus.verdict=dropped", "isthmus.direction=ingress", "isthmus.drop_reason=policy_denied", "network.transport=tcp", "network.type=ipv6",
			"source.address=2001:db8::1", "source.port=40000", "source.k8s.namespace.name=shop", "source.k8s.pod.name=web-1", "source.k8s.workload.name=web", "source.k8s.workload.kind=Deployment",
			"isthmus.source.labels=k8s:app=web", "isthmus.source.masquerade=2001:db8::3", "destination.address=2001:db8::2", "destination.port=5432", "destination.k8s.namespace.name=shop",
			"destination.k8s.pod.name=db-0", "isthmus.destination.service=shop/db", "isthmus.policy.denied_by=NetworkPolicy shop/db, AdminNetworkPolicy edge", "isthmus.cause=no rule accepts"}},
		"combined": {allowed, []string{"isthmus.flow INFO SEVERITY_NUMBER_INFO 1795435200000000005", "shop/web -> 192.0.2.1 icmp FORWARDED", "isthmus.flow.count=7", "isthmus.verdict=forwarded",
			"isthmus.direction=ingress", "network.transport=icmp", "network.type=ipv4", "source.k8s.namespace.name=shop", "source.k8s.workload.name=web", "source.k8s.workload.kind=Deployment",
			"destination.address=192.0.2.1", "isthmus.destination.labels=reserved:world"}},
		"lost":  {lostAnswer(9), []string{"isthmus.lost WARN SEVERITY_NUMBER_WARN 1795435200000000005", "9 lost: HUBBLE_RING_BUFFER", "isthmus.lost.count=9", "isthmus.lost.source=HUBBLE_RING_BUFFER"}},
		"nodes": {status, []string{"isthmus.nodes WARN SEVERITY_NUMBER_WARN 1795435200000000005", "node_unavailable n2,n3 refused", "isthmus.nodes.state=node_unavailable", "isthmus.nodes.names=n2, n3"}},
	} {
		r := record(c.answer, start)
		if got := lines(r); !slices.Equal(got, c.want) {
			t.Errorf("%s:\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
		if r.GetObservedTimeUnixNano() != uint64(start.UnixNano()) {
			t.Errorf("%s: observed at %d", name, r.GetObservedTimeUnixNano())
		}
	}
	if r := record(&observer.GetFlowsResponse{}, start); r != nil {
		t.Errorf("an empty answer: %v", r)
	}
	far := lostAnswer(1)
	far.Time = timestamppb.New(time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC))
	if r := record(far, start); r.GetTimeUnixNano() != 0 {
		t.Errorf("a time that has no form in nanoseconds: %d", r.GetTimeUnixNano())
	}
	if r := record(lostAnswer(math.MaxUint64), start); value(r.GetAttributes()[0].GetValue()) != fmt.Sprint(math.MaxInt64) {
		t.Errorf("a large number: %v", r)
	}
}

// FuzzRecord maps arbitrary answers. Each record can be sent.
func FuzzRecord(f *testing.F) {
	for _, m := range []*observer.GetFlowsResponse{answer(1), lostAnswer(3), {}} {
		wire, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire, "x\xff")
	}
	f.Fuzz(func(t *testing.T, wire []byte, name string) {
		m := &observer.GetFlowsResponse{}
		if proto.Unmarshal(wire, m) != nil {
			return
		}
		if m.GetFlow() != nil {
			m.GetFlow().Summary, m.GetFlow().PolicyLog = name, []string{name}
		}
		r := record(m, start)
		if r == nil {
			return
		}
		if _, err := proto.Marshal(r); err != nil {
			t.Errorf("%v: %v", r, err)
		}
		if !utf8.ValidString(value(r.GetBody())) {
			t.Errorf("the body is not UTF-8: %q", value(r.GetBody()))
		}
	})
}
