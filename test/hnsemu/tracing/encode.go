// SPDX-License-Identifier: Apache-2.0

package tracing

import (
	"encoding/binary"
	"net/netip"
	"unicode/utf16"

	"github.com/isthmus-net/isthmus/test/hnsemu/vfp"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TDH_INTYPE of tdh.h.
const (
	text    = 1
	uint8s  = 4
	uint16s = 6
	uint32s = 8
	boolean = 13
	binary_ = 14
)

// field is a field in the manifest.
type field struct {
	name        string
	in, length  uint16
	mapOfValues string
}

// The ids of events.
const (
	ruleEvent, ruleEventV6, doneEvent, noMatchEvent = 101, 102, 110, 115
)

// Texts of the types of rules.
const (
	typeMap = "RuleTypeMap"

	typeAllow, typeBlock, typeRoute = 1, 2, 21
)

// manifest is the provider's events.
var manifest = map[uint16][]field{
	ruleEvent:   ruleFields(field{"SrcIpv4Addr", uint32s, 4, ""}, field{"DstIpv4Addr", uint32s, 4, ""}),
	ruleEventV6: ruleFields(field{"SrcIpv6Addr", binary_, 16, ""}, field{"DstIpv6Addr", binary_, 16, ""}),
	doneEvent: {{"PortId", uint32s, 4, ""}, {"Direction", uint8s, 1, ""}, {"Status", uint32s, 4, ""}, {"SrcIpv4Addr", uint32s, 4, ""},
		{"DstIpv4Addr", uint32s, 4, ""}, {"SrcPort", uint16s, 2, ""}, {"DstPort", uint16s, 2, ""}, {"IpProtocol", uint8s, 1, ""}},
	noMatchEvent: {{"PortId", uint32s, 4, ""}, {"Direction", uint8s, 1, ""}, {"LayerId", text, 0, ""}, {"SrcIpv4Addr", uint32s, 4, ""},
		{"DstIpv4Addr", uint32s, 4, ""}, {"SrcPort", uint16s, 2, ""}, {"DstPort", uint16s, 2, ""}, {"IpProtocol", uint8s, 1, ""}},
}

func ruleFields(src, dst field) []field {
	return []field{{"PortId", uint32s, 4, ""}, {"Direction", uint8s, 1, "DirectionMap"}, {"LayerId", text, 0, ""}, {"GroupId", text, 0, ""},
		{"RuleId", text, 0, ""}, {"RuleType", uint8s, 1, typeMap}, src, dst, {"SrcPort", uint16s, 2, ""}, {"DstPort", uint16s, 2, ""},
		{"IpProtocol", uint8s, 1, ""}, {"IsTcpSyn", boolean, 4, ""}, {"Status", uint32s, 4, ""}, {"PortName", text, 0, ""},
		{"PortFriendlyName", text, 0, ""}, {"GftFlags", uint32s, 4, ""}, {"StatusLocation", uint32s, 4, ""}}
}

// unicode encodes text with the zero that ends it.
func unicode(s string) (b []byte) {
	for _, u := range append(utf16.Encode([]rune(s)), 0) {
		b = binary.LittleEndian.AppendUint16(b, u)
	}
	return b
}

// Info returns the TRACE_EVENT_INFO of an event, or nil.
func Info(id uint16) []byte {
	fields, known := manifest[id]
	if !known {
		return nil
	}
	const head, each = 112, 24
	b := make([]byte, head+each*len(fields))
	copy(b[32:], descriptor(id))
	binary.LittleEndian.PutUint32(b[100:], uint32(len(fields)))
	binary.LittleEndian.PutUint32(b[104:], uint32(len(fields)))
	for i, f := range fields {
		at := head + each*i
		binary.LittleEndian.PutUint32(b[at+4:], uint32(len(b)))
		b = append(b, unicode(f.name)...)
		binary.LittleEndian.PutUint16(b[at+8:], f.in)
		if f.mapOfValues != "" {
			binary.LittleEndian.PutUint32(b[at+12:], uint32(len(b)))
			b = append(b, unicode(f.mapOfValues)...)
		}
		binary.LittleEndian.PutUint16(b[at+16:], 1)
		binary.LittleEndian.PutUint16(b[at+18:], f.length)
	}
	return b
}

// descriptor returns the EVENT_DESCRIPTOR of an event.
func descriptor(id uint16) []byte {
	b := make([]byte, 16)
	binary.LittleEndian.PutUint16(b, id)
	b[4] = 4 // informational
	binary.LittleEndian.PutUint64(b[8:], 4)
	return b
}

// Descriptors returns the PROVIDER_EVENT_INFO of the provider.
func Descriptors() []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(manifest)))
	b = binary.LittleEndian.AppendUint32(b, 0)
	for _, id := range []uint16{ruleEvent, ruleEventV6, doneEvent, noMatchEvent} {
		b = append(b, descriptor(id)...)
	}
	return b
}

// Map returns the EVENT_MAP_INFO of a name, or nil.
func (h *Host) Map(name string) []byte {
	values := map[string][]string{typeMap: {typeAllow: h.options.Allow, typeBlock: h.options.Block}, "DirectionMap": {"outbound ", "inbound "}}[name]
	if values == nil || name == typeMap && h.options.NoTypes {
		return nil
	}
	b := make([]byte, 16+8*len(values))
	binary.LittleEndian.PutUint32(b[4:], 1)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(values)))
	for i, text := range values {
		binary.LittleEndian.PutUint32(b[16+8*i:], uint32(len(b)))
		binary.LittleEndian.PutUint32(b[20+8*i:], uint32(i))
		b = append(b, unicode(text)...)
	}
	return b
}

// values are the fields of an event that differ from packet to packet.
type values struct {
	layer, group, rule string
	ruleType           uint8
	status             uint32
}

// encode encodes the data of an event.
func encode(id uint16, t *vfp.Trace, v values) (b []byte) {
	for _, f := range manifest[id] {
		switch f.name {
		case "Direction":
			b = append(b, number(t.Direction == hns.In))
		case "LayerId":
			b = append(b, unicode(v.layer)...)
		case "GroupId":
			b = append(b, unicode(v.group)...)
		case "RuleId":
			b = append(b, unicode(v.rule)...)
		case "RuleType":
			b = append(b, v.ruleType)
		case "SrcIpv4Addr", "SrcIpv6Addr":
			b = append(b, sized(t.Src, f.length)...)
		case "DstIpv4Addr", "DstIpv6Addr":
			b = append(b, sized(t.Dst, f.length)...)
		case "SrcPort":
			b = binary.BigEndian.AppendUint16(b, t.SrcPort)
		case "DstPort":
			b = binary.BigEndian.AppendUint16(b, t.DstPort)
		case "IpProtocol":
			b = append(b, t.Protocol)
		case "Status":
			b = binary.LittleEndian.AppendUint32(b, v.status)
		case "PortName", "PortFriendlyName":
			b = append(b, unicode(t.Port)...)
		default:
			b = append(b, make([]byte, f.length)...)
		}
	}
	return b
}

func number(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// sized returns an address in as many bytes as a field has.
func sized(a netip.Addr, length uint16) []byte {
	return append(a.AsSlice(), make([]byte, length)...)[:length]
}
