// SPDX-License-Identifier: Apache-2.0

package export

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
)

// maxGroups bounds the groups of an Aggregator. A full one must be flushed.
const maxGroups = 16384

// Aggregator combines flows that differ only in pods of a workload, addresses of pods, source ports and times. The zero
// value is empty. It is not safe for concurrent use.
type Aggregator struct {
	flows map[string]*observer.GetFlowsResponse
	lost  map[string]*observer.GetFlowsResponse
}

// Add adds an answer. It reports whether the Aggregator is full. An answer that is neither a flow nor a number of
// lost flows is ignored.
func (a *Aggregator) Add(m *observer.GetFlowsResponse) (full bool) {
	if a.flows == nil {
		a.flows, a.lost = make(map[string]*observer.GetFlowsResponse), make(map[string]*observer.GetFlowsResponse)
	}
	switch {
	case m.GetFlow() != nil:
		f := reduced(m.GetFlow())
		key := identity(f) + "/" + m.GetNodeName()
		group := a.flows[key]
		if group == nil {
			f.Aggregate = &flow.Aggregate{}
			group = &observer.GetFlowsResponse{NodeName: m.GetNodeName(), ResponseTypes: &observer.GetFlowsResponse_Flow{Flow: f}}
			a.flows[key] = group
		}
		switch count := group.GetFlow().GetAggregate(); m.GetFlow().GetTrafficDirection() {
		case flow.TrafficDirection_INGRESS:
			count.IngressFlowCount++
		case flow.TrafficDirection_EGRESS:
			count.EgressFlowCount++
		default:
			count.UnknownDirectionFlowCount++
		}
		group.Time = later(group.GetTime(), m.GetTime())
		group.GetFlow().Time = group.GetTime()
	case m.GetLostEvents() != nil:
		l := m.GetLostEvents()
		key := l.GetSource().String() + "/" + m.GetNodeName()
		group := a.lost[key]
		if group == nil {
			group = &observer.GetFlowsResponse{NodeName: m.GetNodeName(), ResponseTypes: &observer.GetFlowsResponse_LostEvents{
				LostEvents: &flow.LostEvent{Source: l.GetSource(), First: l.GetFirst()}}}
			a.lost[key] = group
		}
		sum := group.GetLostEvents()
		sum.NumEventsLost += l.GetNumEventsLost()
		sum.Last = l.GetLast()
		group.Time = later(group.GetTime(), m.GetTime())
	}
	return len(a.flows)+len(a.lost) >= maxGroups
}

// Flush returns the groups in order of their last flow, and becomes empty.
func (a *Aggregator) Flush() []*observer.GetFlowsResponse {
	var all []*observer.GetFlowsResponse
	for _, groups := range []map[string]*observer.GetFlowsResponse{a.lost, a.flows} {
		for _, key := range slices.Sorted(maps.Keys(groups)) {
			all = append(all, groups[key])
		}
	}
	slices.SortStableFunc(all, func(a, b *observer.GetFlowsResponse) int {
		return a.GetTime().AsTime().Compare(b.GetTime().AsTime())
	})
	*a = Aggregator{}
	return all
}

func later(a, b *timestamppb.Timestamp) *timestamppb.Timestamp {
	if a == nil || b != nil && b.AsTime().After(a.AsTime()) {
		return b
	}
	return a
}

// identity returns a string that differs for different flows.
func identity(f *flow.Flow) string {
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(f)
	if err != nil { // a string that is not UTF-8; agents send none
		return time.Now().String()
	}
	return string(text)
}

// reduced returns what the flows of a group have in common.
func reduced(f *flow.Flow) *flow.Flow {
	out := &flow.Flow{Verdict: f.GetVerdict(), DropReasonDesc: f.GetDropReasonDesc(), Type: f.GetType(), EventType: f.GetEventType(),
		TrafficDirection: f.GetTrafficDirection(), IsReply: f.GetIsReply(), PolicyMatchType: f.GetPolicyMatchType(), NodeName: f.GetNodeName(),
		SourceService: f.GetSourceService(), DestinationService: f.GetDestinationService(),
		EgressAllowedBy: f.GetEgressAllowedBy(), IngressAllowedBy: f.GetIngressAllowedBy(), EgressDeniedBy: f.GetEgressDeniedBy(),
		IngressDeniedBy: f.GetIngressDeniedBy(), PolicyLog: f.GetPolicyLog(), Summary: f.GetSummary(), L4: withoutSourcePort(f.GetL4())}
	var ip flow.IP
	out.Source, ip.Source = end(f.GetSource(), f.GetIP().GetSource())
	out.Destination, ip.Destination = end(f.GetDestination(), f.GetIP().GetDestination())
	ip.IpVersion = f.GetIP().GetIpVersion()
	out.IP = &ip
	return out
}

// end returns the workload of an end. A pod without a workload keeps its name. Only an end that is not a pod keeps
// its address.
func end(e *flow.Endpoint, address string) (*flow.Endpoint, string) {
	if e.GetNamespace() == "" {
		if e.GetPodName() == "" {
			return e, address
		}
		return e, ""
	}
	out := &flow.Endpoint{Namespace: e.GetNamespace(), Workloads: e.GetWorkloads(), ClusterName: e.GetClusterName()}
	if len(out.GetWorkloads()) == 0 {
		out.PodName = e.GetPodName()
	}
	return out, ""
}

// withoutSourcePort returns the protocol with the port of the destination.
func withoutSourcePort(l *flow.Layer4) *flow.Layer4 {
	out := proto.CloneOf(l)
	switch p := out.GetProtocol().(type) {
	case *flow.Layer4_TCP:
		p.TCP = &flow.TCP{DestinationPort: p.TCP.GetDestinationPort()}
	case *flow.Layer4_UDP:
		p.UDP = &flow.UDP{DestinationPort: p.UDP.GetDestinationPort()}
	case *flow.Layer4_SCTP:
		p.SCTP = &flow.SCTP{DestinationPort: p.SCTP.GetDestinationPort()}
	}
	return out
}
