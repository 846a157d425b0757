// SPDX-License-Identifier: Apache-2.0

package flowevents

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/etw"
)

// The provider, as recorded on Windows Server 2022 and 2025. Its rule events have keyword 4 and level 4
// (informational), as have events about every packet, which a Session filters out.
const (
	Provider        = "{9F2660EA-CFE7-428F-9850-AECA612619B0}" // Microsoft-Windows-Hyper-V-VfpExt
	keyword  uint64 = 4
	level    uint8  = 4
	// ruleEvent is the id of the event "rule with ID ... processed packets", IPv4.
	ruleEvent = 101
	// SessionName is the name of the agent's session.
	SessionName = "isthmus-flow-events"
)

// The fields of rule events. Those of IPv6 are assumed by analogy; no recording has one.
const (
	fieldLayer, fieldRule, fieldType           = "LayerId", "RuleId", "RuleType"
	fieldDirection, fieldProtocol              = "Direction", "IpProtocol"
	fieldSrcPort, fieldDstPort                 = "SrcPort", "DstPort"
	fieldSrc4, fieldDst4, fieldSrc6, fieldDst6 = "SrcIpv4Addr", "DstIpv4Addr", "SrcIpv6Addr", "DstIpv6Addr"
)

// aclLayer is the layer of the rules that HNS makes of ACLs of endpoints.
const aclLayer = "ACL_ENDPOINT_LAYER"

// inbound is the Direction of packets to the pod; 0 is outbound.
const inbound = 1

// Session returns the configuration of the ETW session.
func Session() etw.Config {
	return etw.Config{Name: SessionName, Provider: Provider, Level: level, Keywords: keyword, Wanted: Wanted, IDs: []uint16{ruleEvent}}
}

// Wanted reports whether an event with these fields is about a rule and names the packet.
func Wanted(fields []string) bool {
	for _, name := range []string{fieldLayer, fieldRule, fieldType, fieldDirection, fieldProtocol, fieldSrcPort, fieldDstPort} {
		if !slices.Contains(fields, name) {
			return false
		}
	}
	has := func(a, b string) bool { return slices.Contains(fields, a) && slices.Contains(fields, b) }
	return has(fieldSrc4, fieldDst4) || has(fieldSrc6, fieldDst6)
}

// packet is a packet that a rule of the ACL layer decided.
type packet struct {
	time             time.Time
	direction        model.Direction
	src, dst         netip.Addr
	srcPort, dstPort uint16
	protocol         model.Protocol
	// blocked and allowed are what the event says of the rule. Neither is set if the manifest has no English text
	// for its type.
	blocked, allowed bool
}

// parse returns the packet of an event of the ACL layer; ok is false for other events.
func parse(e *etw.Event) (p packet, ok bool) {
	layer, kind, direction := e.Field(fieldLayer), e.Field(fieldType), e.Field(fieldDirection)
	protocol, srcPort, dstPort := e.Field(fieldProtocol), e.Field(fieldSrcPort), e.Field(fieldDstPort)
	if layer == nil || kind == nil || direction == nil || protocol == nil || srcPort == nil || dstPort == nil ||
		!strings.EqualFold(layer.Text, aclLayer) || direction.Number > inbound || protocol.Number > 255 {
		return packet{}, false
	}
	p = packet{time: e.Time, direction: model.Egress, protocol: model.Protocol(protocol.Number)}
	if direction.Number == inbound {
		p.direction = model.Ingress
	}
	p.src, p.dst = address(e, fieldSrc4, fieldSrc6), address(e, fieldDst4, fieldDst6)
	if !p.src.IsValid() || !p.dst.IsValid() || p.src.Is4() != p.dst.Is4() {
		return packet{}, false
	}
	if p.protocol.HasPorts() {
		p.srcPort, p.dstPort = port(srcPort), port(dstPort)
	}
	meaning := strings.ToLower(kind.Meaning)
	p.blocked, p.allowed = strings.Contains(meaning, "block"), strings.Contains(meaning, "allow")
	return p, true
}

// address decodes an address in network order: 4 bytes of one field, or 16 of another.
func address(e *etw.Event, v4, v6 string) netip.Addr {
	if f := e.Field(v4); f != nil && len(f.Bytes) == 4 {
		return netip.AddrFrom4([4]byte(f.Bytes))
	}
	if f := e.Field(v6); f != nil && len(f.Bytes) == 16 {
		return netip.AddrFrom16([16]byte(f.Bytes))
	}
	return netip.Addr{}
}

// port decodes a port in network order.
func port(f *etw.Field) uint16 {
	if len(f.Bytes) != 2 {
		return 0
	}
	return uint16(f.Bytes[0])<<8 | uint16(f.Bytes[1])
}

// own and remote return the addresses of the pod and of the other end.
func (p *packet) own() netip.Addr {
	if p.direction == model.Egress {
		return p.src
	}
	return p.dst
}

func (p *packet) remote() netip.Addr {
	if p.direction == model.Egress {
		return p.dst
	}
	return p.src
}

// Describe returns the packet of an event as text. It returns false if the event is not about a rule of an ACL.
func Describe(e *etw.Event) (string, bool) {
	p, ok := parse(e)
	if !ok {
		return "", false
	}
	return fmt.Sprintf("%s %s", p.direction, model.Flow{Src: p.src, Dst: p.dst, Protocol: p.protocol, Port: p.dstPort}), true
}
