// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	commonv1 "go.opentelemetry.io/proto/slim/otlp/common/v1"
	logsv1 "go.opentelemetry.io/proto/slim/otlp/logs/v1"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
)

// The names of events. Consumers select records by them.
const (
	// flowEvent is a flow, or several with isthmus.flow.count.
	flowEvent = "isthmus.flow"
	// lostEvent is a number of flows or records that this stream lacks.
	lostEvent = "isthmus.lost"
	// nodesEvent is a change of the nodes whose flows arrive.
	nodesEvent = "isthmus.nodes"
)

// queueSource is the source of records that the Exporter itself missed, beside the sources of Hubble's interface.
const queueSource = "OTLP_QUEUE"

// record returns the log record of an answer; nil for an answer of another kind.
func record(m *observer.GetFlowsResponse, observed time.Time) *logsv1.LogRecord {
	r := &logsv1.LogRecord{TimeUnixNano: nanos(m.GetTime().AsTime()), ObservedTimeUnixNano: nanos(observed),
		SeverityNumber: logsv1.SeverityNumber_SEVERITY_NUMBER_WARN, SeverityText: "WARN"}
	switch {
	case m.GetFlow() != nil:
		describeFlow(r, m.GetFlow())
	case m.GetLostEvents() != nil:
		describeLost(r, m.GetLostEvents().GetSource().String(), m.GetLostEvents().GetNumEventsLost())
	case m.GetNodeStatus() != nil:
		s := m.GetNodeStatus()
		r.EventName = nodesEvent
		state := strings.ToLower(s.GetStateChange().String())
		r.Body = text(strings.TrimSpace(state + " " + strings.Join(s.GetNodeNames(), ",") + " " + s.GetMessage()))
		var a attributes
		a.text("isthmus.nodes.state", state)
		a.texts("isthmus.nodes.names", s.GetNodeNames())
		r.Attributes = a
	default:
		return nil
	}
	return r
}

// nanos returns a time in nanoseconds, 0 for one that is not set or after the year 2262.
func nanos(t time.Time) uint64 {
	if s := t.Unix(); s <= 0 || s >= math.MaxInt64/int64(time.Second) {
		return 0
	}
	return uint64(t.UnixNano())
}

// lost returns the record of n records that the Exporter could not send.
func lost(n uint64, now time.Time) *logsv1.LogRecord {
	r := &logsv1.LogRecord{TimeUnixNano: nanos(now), ObservedTimeUnixNano: nanos(now),
		SeverityNumber: logsv1.SeverityNumber_SEVERITY_NUMBER_WARN, SeverityText: "WARN"}
	describeLost(r, queueSource, n)
	return r
}

func describeLost(r *logsv1.LogRecord, source string, n uint64) {
	r.EventName = lostEvent
	r.Body = text(fmt.Sprintf("%d lost: %s", n, source))
	var a attributes
	a.number("isthmus.lost.count", n)
	a.text("isthmus.lost.source", source)
	r.Attributes = a
}

// describeFlow fills the record of a flow. Names without the prefix isthmus are those of OpenTelemetry's conventions.
func describeFlow(r *logsv1.LogRecord, f *flow.Flow) {
	r.EventName = flowEvent
	if f.GetVerdict() == flow.Verdict_FORWARDED {
		r.SeverityNumber, r.SeverityText = logsv1.SeverityNumber_SEVERITY_NUMBER_INFO, "INFO"
	}
	transport, sourcePort, port := ports(f.GetL4())
	var a attributes
	a.text("isthmus.flow.id", f.GetUuid())
	a.number("isthmus.flow.count", count(f))
	a.text("isthmus.verdict", strings.ToLower(f.GetVerdict().String()))
	a.text("isthmus.direction", strings.ToLower(direction(f.GetTrafficDirection())))
	if f.GetDropReasonDesc() != flow.DropReason_DROP_REASON_UNKNOWN {
		a.text("isthmus.drop_reason", strings.ToLower(f.GetDropReasonDesc().String()))
	}
	a.text("network.transport", transport)
	a.text("network.type", map[flow.IPVersion]string{flow.IPVersion_IPv4: "ipv4", flow.IPVersion_IPv6: "ipv6"}[f.GetIP().GetIpVersion()])
	a.end("source", f.GetSource(), f.GetIP().GetSource(), sourcePort)
	a.text("isthmus.source.masquerade", f.GetIP().GetSourceXlated())
	a.end("destination", f.GetDestination(), f.GetIP().GetDestination(), port)
	if s := f.GetDestinationService(); s.GetName() != "" {
		a.text("isthmus.destination.service", s.GetNamespace()+"/"+s.GetName())
	}
	a.texts("isthmus.policy.allowed_by", append(policies(f.GetEgressAllowedBy()), policies(f.GetIngressAllowedBy())...))
	a.texts("isthmus.policy.denied_by", append(policies(f.GetEgressDeniedBy()), policies(f.GetIngressDeniedBy())...))
	a.texts("isthmus.cause", f.GetPolicyLog())
	r.Attributes = a
	r.Body = text(strings.TrimSpace(fmt.Sprintf("%s -> %s %s %s %s", name(f.GetSource(), f.GetIP().GetSource(), 0),
		name(f.GetDestination(), f.GetIP().GetDestination(), port),
		transport, f.GetVerdict(), f.GetSummary())))
}

// count returns how many flows a flow stands for.
func count(f *flow.Flow) uint64 {
	a := f.GetAggregate()
	return max(1, uint64(a.GetIngressFlowCount())+uint64(a.GetEgressFlowCount())+uint64(a.GetUnknownDirectionFlowCount()))
}

func direction(d flow.TrafficDirection) string {
	if d == flow.TrafficDirection_TRAFFIC_DIRECTION_UNKNOWN {
		return ""
	}
	return d.String()
}

// ports returns the transport and its ports; 0 without them.
func ports(l *flow.Layer4) (transport string, source, destination uint32) {
	switch p := l.GetProtocol().(type) {
	case *flow.Layer4_TCP:
		return "tcp", p.TCP.GetSourcePort(), p.TCP.GetDestinationPort()
	case *flow.Layer4_UDP:
		return "udp", p.UDP.GetSourcePort(), p.UDP.GetDestinationPort()
	case *flow.Layer4_SCTP:
		return "sctp", p.SCTP.GetSourcePort(), p.SCTP.GetDestinationPort()
	case *flow.Layer4_ICMPv4:
		return "icmp", 0, 0
	case *flow.Layer4_ICMPv6:
		return "icmpv6", 0, 0
	}
	return "", 0, 0
}

// policies returns policies as Kind namespace/name.
func policies(list []*flow.Policy) (names []string) {
	for _, p := range list {
		n := p.GetName()
		if p.GetNamespace() != "" {
			n = p.GetNamespace() + "/" + n
		}
		names = append(names, strings.TrimSpace(p.GetKind()+" "+n))
	}
	return names
}

// name returns an end for people: a pod, a workload, or an address, and a port unless it is 0.
func name(e *flow.Endpoint, address string, port uint32) string {
	n := address
	switch {
	case e.GetPodName() != "":
		n = e.GetNamespace() + "/" + e.GetPodName()
	case len(e.GetWorkloads()) > 0:
		n = e.GetNamespace() + "/" + e.GetWorkloads()[0].GetName()
	case n == "" && len(e.GetLabels()) > 0:
		n = e.GetLabels()[0]
	}
	if port == 0 {
		return n
	}
	return net.JoinHostPort(n, strconv.Itoa(int(port)))
}

// attributes are those of a record. Empty values are left out.
type attributes []*commonv1.KeyValue

func text(s string) *commonv1.AnyValue {
	return &commonv1.AnyValue{Value: &commonv1.AnyValue_StringValue{StringValue: strings.ToValidUTF8(s, "\uFFFD")}}
}

func (a *attributes) add(key string, v *commonv1.AnyValue) {
	*a = append(*a, &commonv1.KeyValue{Key: key, Value: v})
}

func (a *attributes) text(key, s string) {
	if s != "" {
		a.add(key, text(s))
	}
}

func (a *attributes) number(key string, n uint64) {
	a.add(key, &commonv1.AnyValue{Value: &commonv1.AnyValue_IntValue{IntValue: int64(min(n, 1<<63-1))}})
}

func (a *attributes) texts(key string, list []string) {
	if len(list) == 0 {
		return
	}
	var values []*commonv1.AnyValue
	for _, s := range list {
		values = append(values, text(s))
	}
	a.add(key, &commonv1.AnyValue{Value: &commonv1.AnyValue_ArrayValue{ArrayValue: &commonv1.ArrayValue{Values: values}}})
}

// end adds one end of a flow.
func (a *attributes) end(side string, e *flow.Endpoint, address string, port uint32) {
	a.text(side+".address", address)
	if port != 0 {
		a.number(side+".port", uint64(port))
	}
	a.text(side+".k8s.namespace.name", e.GetNamespace())
	a.text(side+".k8s.pod.name", e.GetPodName())
	if w := e.GetWorkloads(); len(w) > 0 {
		a.text(side+".k8s.workload.name", w[0].GetName())
		a.text(side+".k8s.workload.kind", w[0].GetKind())
	}
	a.texts("isthmus."+side+".labels", e.GetLabels())
}
