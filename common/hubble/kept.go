// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"encoding/binary"
	"encoding/hex"
	"sync/atomic"

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

// Kept is a flow, with what was known about it when it came. It takes less than half of the memory of its message, and most
// messages are never read. It is safe for concurrent use.
type Kept struct {
	flow          *observe.Flow
	mapper        *Mapper
	number        uint64
	labels        []string // of the node
	local, remote *flow.Endpoint
	reason        *reason
	// message is what Message made, until Forget.
	message atomic.Pointer[flow.Flow]
	old     atomic.Bool
}

// Message returns the message of the flow: the same one for all clients, until Forget. One that is made while Forget runs
// may stay.
func (k *Kept) Message() *flow.Flow {
	if m := k.message.Load(); m != nil {
		return m
	}
	m := k.build()
	if !k.old.Load() {
		k.message.Store(m)
	}
	return m
}

// Forget releases the message. Message makes a new one each time it is called.
func (k *Kept) Forget() {
	k.old.Store(true)
	k.message.Store(nil)
}

// message holds the parts of a message, which take one allocation together.
type message struct {
	flow  flow.Flow
	time  timestamppb.Timestamp
	ip    flow.IP
	l4    flow.Layer4
	tcp   flow.TCP
	isTCP flow.Layer4_TCP
}

func (k *Kept) build() *flow.Flow {
	f, m, all := k.flow, k.mapper, &message{}
	out := &all.flow
	all.time.Seconds, all.time.Nanos = f.Time.Unix(), int32(f.Time.Nanosecond())
	out.Time, out.Uuid, out.Emitter, out.Type = &all.time, k.uuid(), m.emitter, flow.FlowType_L3_L4
	out.NodeName, out.NodeLabels, out.TrafficDirection = m.node, k.labels, directions[f.Direction]
	k.outcome(out)
	if f.Direction == model.Egress {
		out.Source, out.Destination = k.local, k.remote
	} else {
		out.Source, out.Destination = k.remote, k.local
	}
	if f.Src.IsValid() {
		out.IP = &all.ip
		all.ip.Source, all.ip.Destination, all.ip.IpVersion = f.Src.String(), f.Dst.String(), flow.IPVersion_IPv4
		if f.Src.Is6() {
			all.ip.IpVersion = flow.IPVersion_IPv6
		}
		if f.Masquerade.IsValid() {
			all.ip.SourceXlated = f.Masquerade.Addr().String()
		}
		out.L4 = transport(f, all)
	}
	return out
}

var directions = [...]flow.TrafficDirection{model.Ingress: flow.TrafficDirection_INGRESS, model.Egress: flow.TrafficDirection_EGRESS}

// uuid returns a UUID of version 8, unique among all nodes and starts.
func (k *Kept) uuid() string {
	var raw [16]byte
	binary.BigEndian.PutUint32(raw[:], uint32(k.mapper.prefix>>32))
	binary.BigEndian.PutUint16(raw[4:], uint16(k.mapper.prefix>>16))
	binary.BigEndian.PutUint16(raw[6:], 0x8000|uint16(k.mapper.prefix>>4)&0xfff)
	binary.BigEndian.PutUint64(raw[8:], 0x8<<60|k.number&(1<<60-1))
	var text [36]byte
	for _, part := range [...]struct{ at, from, to int }{{0, 0, 4}, {9, 4, 6}, {14, 6, 8}, {19, 8, 10}, {24, 10, 16}} {
		hex.Encode(text[part.at:], raw[part.from:part.to])
	}
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return string(text[:])
}

// The parts that all messages about an outcome share.
var (
	isNoReply    = wrapperspb.Bool(false)
	eventAllowed = &flow.CiliumEventType{Type: eventPolicyVerdict}
	eventDenied  = &flow.CiliumEventType{Type: eventPolicyVerdict, SubType: int32(flow.DropReason_POLICY_DENIED)}
	eventByRule  = &flow.CiliumEventType{Type: eventPolicyVerdict, SubType: int32(flow.DropReason_POLICY_DENY)}
)

// outcome sets what happened and why.
func (k *Kept) outcome(out *flow.Flow) {
	f, r := k.flow, k.reason
	byRule := f.Cause != nil && f.Cause.Reason == model.ReasonRule
	switch {
	case f.Drop != model.NotDropped:
		desc := dropReasons[f.Drop]
		out.Verdict, out.DropReasonDesc = flow.Verdict_DROPPED, desc
		out.EventType = &flow.CiliumEventType{Type: eventDrop, SubType: int32(desc)}
	case f.Verdict == model.Deny:
		out.Verdict, out.DropReasonDesc, out.EventType, out.IsReply = flow.Verdict_DROPPED, flow.DropReason_POLICY_DENIED, eventDenied, isNoReply
		if byRule {
			out.DropReasonDesc, out.PolicyMatchType, out.EventType = flow.DropReason_POLICY_DENY, matchL3L4, eventByRule
		}
	default:
		out.Verdict, out.EventType, out.IsReply = flow.Verdict_FORWARDED, eventAllowed, isNoReply
		out.PolicyMatchType = matchAll
		if byRule {
			out.PolicyMatchType = matchL3L4
		}
	}
	if f.Observed {
		out.Verdict = flow.Verdict_AUDIT
	}
	out.Summary, out.PolicyLog = r.summary, r.log
	if r.policy != nil && f.Drop == model.NotDropped {
		setPolicy(out, f, r.policy)
	}
	if f.Service.IsValid() {
		out.Summary += "; service " + f.Service.String()
	}
}

// setPolicy names the policy that decided.
func setPolicy(out *flow.Flow, f *observe.Flow, list []*flow.Policy) {
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
	model.DropPortTaken:  flow.DropReason_NO_MAPPING_FOR_NAT_MASQUERADE,
}

// transport returns the ports, or the type of an ICMP message; nil for other protocols.
func transport(f *observe.Flow, all *message) *flow.Layer4 {
	src, dst := uint32(f.SrcPort), uint32(f.DstPort)
	switch f.Protocol {
	case model.TCP:
		all.tcp.SourcePort, all.tcp.DestinationPort = src, dst
		all.isTCP.TCP, all.l4.Protocol = &all.tcp, &all.isTCP
		return &all.l4
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
