// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
)

// The types of events in Flow.event_type.
const (
	eventDrop          = 1
	eventPolicyVerdict = 5
)

// The values of Flow.policy_match_type that Isthmus sends.
const (
	matchNone = 0
	matchL3L4 = 2
	matchAll  = 4
)

// Emitter is the name of the emitter of all flows.
const Emitter = "Isthmus"

// Mapper makes messages of flow events. It is not safe for concurrent use.
type Mapper struct {
	node    string
	emitter *flow.Emitter
	// prefix makes the UUIDs of this start differ from those of other nodes and other starts. count is the
	// number of flows so far.
	prefix uint64
	count  uint64

	latest func() *model.Snapshot
	// endpoints and labels belong to the snapshot known.
	known     *model.Snapshot
	endpoints map[model.PodID]*flow.Endpoint
	labels    []string
}

// NewMapper returns a Mapper for a node. It labels pods by the snapshot that latest returns, which may be nil.
func NewMapper(node, version string, start time.Time, latest func() *model.Snapshot) *Mapper {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", node, start.UnixNano()))
	return &Mapper{node: node, emitter: &flow.Emitter{Name: Emitter, Version: version}, prefix: binary.BigEndian.Uint64(sum[:]), latest: latest}
}

// Map returns the message of a flow. The message shares parts with others: it must not be changed.
func (m *Mapper) Map(f *observe.Flow) *flow.Flow {
	m.refresh()
	m.count++
	out := &flow.Flow{Time: timestamppb.New(f.Time), Uuid: m.uuid(), Emitter: m.emitter, Type: flow.FlowType_L3_L4,
		NodeName: m.node, NodeLabels: m.labels, TrafficDirection: directions[f.Direction]}
	m.outcome(out, f)
	local := m.pod(f.Pod)
	remote := m.remote(f)
	if f.Direction == model.Egress {
		out.Source, out.Destination = local, remote
	} else {
		out.Source, out.Destination = remote, local
	}
	if f.Src.IsValid() {
		out.IP = &flow.IP{Source: f.Src.String(), Destination: f.Dst.String(), IpVersion: flow.IPVersion_IPv4}
		if f.Src.Is6() {
			out.IP.IpVersion = flow.IPVersion_IPv6
		}
		if f.Masquerade.IsValid() {
			out.IP.SourceXlated = f.Masquerade.Addr().String()
		}
		out.L4 = transport(f)
	}
	return out
}

var directions = [...]flow.TrafficDirection{model.Ingress: flow.TrafficDirection_INGRESS, model.Egress: flow.TrafficDirection_EGRESS}

// refresh follows the newest snapshot.
func (m *Mapper) refresh() {
	s := m.latest()
	if s == m.known && m.endpoints != nil {
		return
	}
	m.known, m.endpoints, m.labels = s, make(map[model.PodID]*flow.Endpoint), nil
	if s == nil {
		return
	}
	if n, ok := s.Nodes.Get(m.node); ok {
		for k, v := range n.Labels.All() {
			m.labels = append(m.labels, k+"="+v)
		}
	}
}

// uuid returns a UUID of version 8, unique among all nodes and starts.
func (m *Mapper) uuid() string {
	return fmt.Sprintf("%08x-%04x-8%03x-8%03x-%012x", uint32(m.prefix>>32), uint16(m.prefix>>16), m.prefix>>4&0xfff, m.count>>48&0xfff, m.count&(1<<48-1))
}

// outcome sets what happened and why.
func (m *Mapper) outcome(out *flow.Flow, f *observe.Flow) {
	switch {
	case f.Drop != model.NotDropped:
		reason := dropReasons[f.Drop]
		out.Verdict, out.DropReasonDesc = flow.Verdict_DROPPED, reason
		out.EventType = &flow.CiliumEventType{Type: eventDrop, SubType: int32(reason)}
		out.Summary = f.Drop.String()
	case f.Verdict == model.Deny:
		out.Verdict, out.DropReasonDesc = flow.Verdict_DROPPED, flow.DropReason_POLICY_DENIED
		out.EventType = &flow.CiliumEventType{Type: eventPolicyVerdict, SubType: int32(flow.DropReason_POLICY_DENIED)}
		out.IsReply = wrapperspb.Bool(false)
		if c := f.Cause; c != nil && c.Reason == model.ReasonRule {
			out.DropReasonDesc, out.PolicyMatchType = flow.DropReason_POLICY_DENY, matchL3L4
			out.EventType.SubType = int32(flow.DropReason_POLICY_DENY)
		}
	default:
		out.Verdict, out.IsReply = flow.Verdict_FORWARDED, wrapperspb.Bool(false)
		out.EventType = &flow.CiliumEventType{Type: eventPolicyVerdict}
		out.PolicyMatchType = matchAll
		if c := f.Cause; c != nil && c.Reason == model.ReasonRule {
			out.PolicyMatchType = matchL3L4
		}
	}
	if f.Observed {
		out.Verdict = flow.Verdict_AUDIT
	}
	if f.Cause != nil {
		out.Summary = f.Cause.String()
		setPolicy(out, f)
	} else if f.Drop == model.NotDropped {
		out.Summary = "the rules of that time are not known"
	}
	out.PolicyLog = []string{out.Summary}
	if f.Service.IsValid() {
		out.Summary += "; service " + f.Service.String()
	}
}

// setPolicy names the policy that decided.
func setPolicy(out *flow.Flow, f *observe.Flow) {
	c := f.Cause
	if f.Drop != model.NotDropped || c.Reason != model.ReasonRule && c.Reason != model.ReasonIsolated {
		return
	}
	p := &flow.Policy{Name: c.Origin.Name, Namespace: c.Origin.Namespace, Kind: c.Origin.Kind}
	if c.Reason == model.ReasonRule {
		p.Labels = []string{"isthmus.dev/tier=" + c.Tier.String(), fmt.Sprintf("isthmus.dev/rule=%d", c.Rule)}
		if c.RuleName != "" {
			p.Labels = append(p.Labels, "isthmus.dev/rule-name="+c.RuleName)
		}
	}
	list := []*flow.Policy{p}
	switch {
	case f.Verdict == model.Deny && f.Direction == model.Egress:
		out.EgressDeniedBy = list
	case f.Verdict == model.Deny:
		out.IngressDeniedBy = list
	case f.Direction == model.Egress:
		out.EgressAllowedBy = list
	default:
		out.IngressAllowedBy = list
	}
}

// dropReasons are the reasons of the data path in the words of Hubble. Flow.policy_log has our own word.
var dropReasons = [...]flow.DropReason{
	model.DropNoEndpoint: flow.DropReason_DROP_EP_NOT_READY,
	model.DropNotIP:      flow.DropReason_UNSUPPORTED_L3_PROTOCOL,
	model.DropMalformed:  flow.DropReason_INVALID_PACKET_DROPPED,
	model.DropSpoofed:    flow.DropReason_INVALID_SOURCE_IP,
	model.DropFragment:   flow.DropReason_FIRST_LOGICAL_DATAGRAM_FRAGMENT_NOT_FOUND,
	model.DropRevoked:    flow.DropReason_POLICY_DENIED,
	model.DropNeighbour:  flow.DropReason_FIB_LOOKUP_FAILED,
	model.DropUnmarked:   flow.DropReason_NO_CONFIGURATION_AVAILABLE_TO_PERFORM_POLICY_DECISION,
	model.DropTunnel:     flow.DropReason_ENCAPSULATION_TRAFFIC_IS_PROHIBITED,
}

// transport returns the ports, or the type of an ICMP message; nil for other protocols.
func transport(f *observe.Flow) *flow.Layer4 {
	src, dst := uint32(f.SrcPort), uint32(f.DstPort)
	switch f.Protocol {
	case model.TCP:
		return &flow.Layer4{Protocol: &flow.Layer4_TCP{TCP: &flow.TCP{SourcePort: src, DestinationPort: dst}}}
	case model.UDP:
		return &flow.Layer4{Protocol: &flow.Layer4_UDP{UDP: &flow.UDP{SourcePort: src, DestinationPort: dst}}}
	case model.SCTP:
		return &flow.Layer4{Protocol: &flow.Layer4_SCTP{SCTP: &flow.SCTP{SourcePort: src, DestinationPort: dst}}}
	case model.ICMP, model.ICMPv6:
		return icmp(f)
	}
	return nil
}

// icmp returns the type of an ICMP message, or nil if it is not known: clients take 0 for an echo reply.
func icmp(f *observe.Flow) *flow.Layer4 {
	if f.Detail >= model.UnknownICMPType {
		return nil
	}
	if f.Protocol == model.ICMP {
		return &flow.Layer4{Protocol: &flow.Layer4_ICMPv4{ICMPv4: &flow.ICMPv4{Type: uint32(f.Detail)}}}
	}
	return &flow.Layer4{Protocol: &flow.Layer4_ICMPv6{ICMPv6: &flow.ICMPv6{Type: uint32(f.Detail)}}}
}

// remote describes the remote end of a flow.
func (m *Mapper) remote(f *observe.Flow) *flow.Endpoint {
	switch {
	case f.Peer != (model.PodID{}):
		return m.pod(f.Peer)
	case f.PeerNode == m.node && f.PeerNode != "":
		return reservedHost
	case f.PeerNode != "":
		return reservedRemoteNode
	case f.Remote() != netip.Addr{}:
		return reservedWorld
	}
	return reservedUnknown
}

// pod describes a pod.
func (m *Mapper) pod(id model.PodID) *flow.Endpoint {
	if id == (model.PodID{}) {
		return reservedUnknown
	}
	if e := m.endpoints[id]; e != nil {
		return e
	}
	e := &flow.Endpoint{Namespace: id.Namespace, PodName: id.Name, ClusterName: Cluster,
		Labels: []string{"k8s:io.kubernetes.pod.namespace=" + id.Namespace}}
	name, kind := id.Name, "Pod"
	if m.known != nil {
		if p, ok := m.known.Pods.Get(id); ok {
			for k, v := range p.Labels.All() {
				e.Labels = append(e.Labels, "k8s:"+k+"="+v)
			}
			if w := workloadOf(p); w != nil {
				e.Workloads = []*flow.Workload{w}
				name, kind = w.Name, w.Kind
			}
		}
	}
	e.Identity = identity(id.Namespace, kind, name)
	if len(m.endpoints) < maxEndpoints {
		m.endpoints[id] = e
	}
	return e
}

// maxEndpoints bounds the pods that a Mapper remembers.
const maxEndpoints = 4096

// identity returns the number of a workload. It is the same on all nodes, and above the numbers that Hubble
// reserves.
func identity(words ...string) uint32 {
	sum := sha256.Sum256([]byte(strings.Join(words, "/")))
	return 1<<24 | binary.BigEndian.Uint32(sum[:])>>8
}

// Cluster is the name of the cluster in all messages.
const Cluster = "default"

// The ends that are not pods, with the numbers and labels that Hubble reserves.
var (
	reservedUnknown    = &flow.Endpoint{Labels: []string{"reserved:unknown"}}
	reservedHost       = &flow.Endpoint{Identity: 1, ClusterName: Cluster, Labels: []string{"reserved:host"}}
	reservedWorld      = &flow.Endpoint{Identity: 2, Labels: []string{"reserved:world"}}
	reservedRemoteNode = &flow.Endpoint{Identity: 6, ClusterName: Cluster, Labels: []string{"reserved:remote-node"}}
)
