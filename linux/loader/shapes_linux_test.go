// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"encoding/binary"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// sctp is an SCTP common header and an INIT chunk.
func sctp(src, dst uint16) gopacket.Payload {
	p := make([]byte, 32)
	binary.BigEndian.PutUint16(p, src)
	binary.BigEndian.PutUint16(p[2:], dst)
	p[12] = 1
	binary.BigEndian.PutUint16(p[14:], 20)
	return p
}

// Protocols without ports are flows between addresses. Only rules without ports allow them.
func TestOtherProtocols(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		b := newBench(t)
		leaveNamespace(t)
		forward6(t)
		for _, proto := range []layers.IPProtocol{4, 41, layers.IPProtocolGRE, 50, ah, 89, 103, 112, 136, 253, 255} {
			if v6 && proto == ah {
				continue // an extension header
			}
			b.under(tableWeb)
			b.expect(out, frame(out, ip(v6, out, proto), payload), false, bpfobj.CountEgressDeny)
			b.under(tableOut)
			b.expect(in, frame(in, ip(v6, in, proto), payload), false, bpfobj.CountIngressDeny)
			b.expect(out, frame(out, ip(v6, out, proto), payload), true, bpfobj.CountEgressAllow)
			b.expect(in, frame(in, ip(v6, in, proto), payload), true, nothing)
			if t.Failed() {
				t.Fatalf("protocol %d", proto)
			}
		}
	})
}

// SCTP has its own ports: rules for TCP and UDP ports do not apply.
func TestSCTP(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		b := newBench(t)
		packet := func(d way, src, dst uint16) []byte {
			return frame(d, ip(v6, d, layers.IPProtocolSCTP), sctp(src, dst))
		}
		b.expect(out, packet(out, 1000, 80), false, bpfobj.CountEgressDeny)
		b.under(tableOut)
		b.expect(out, packet(out, 1000, 80), true, bpfobj.CountEgressAllow)
		b.expect(in, packet(in, 80, 1000), true, nothing)
		b.expect(in, packet(in, 81, 1000), false, bpfobj.CountIngressDeny)
		b.expect(out, frame(out, ip(v6, out, layers.IPProtocolSCTP), gopacket.Payload{1, 2, 3}), false, bpfobj.DropMalformed)
	})
}

// A pod may send VXLAN. Policy sees the outer datagram, and its content is payload, complete or
// not.
func TestVXLANIsPayload(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		b := newBench(t)
		vxlan := func(dst uint16, inner []byte) []byte {
			return frame(out, ip(v6, out, layers.IPProtocolUDP), udp(50000, dst), gopacket.Payload(append([]byte{8, 0, 0, 0, 0, 16, 0, 0}, inner...)))
		}
		inner := frame(out, ip4(out, layers.IPProtocolTCP), tcp(1000, 80, "S"))
		b.expect(out, vxlan(4789, inner), false, bpfobj.CountEgressDeny) // though port 80 in it is allowed
		b.expect(out, vxlan(80, inner), true, bpfobj.CountEgressAllow)
		b.expect(out, vxlan(80, inner[:20]), true, nothing)
		b.expect(out, vxlan(80, nil), true, nothing)
	})
}

// VLAN-tagged frames do not bypass policy.
func TestVLANTags(t *testing.T) {
	b := newBench(t)
	b.under(tableOpen)
	good := frame(out, ip4(out, layers.IPProtocolTCP), tcp(1000, 80, "S"))
	for _, tag := range [][]byte{{0x81, 0, 0, 5}, {0x88, 0xa8, 0, 5}, {0x88, 0xa8, 0, 5, 0x81, 0, 0, 6}, {0x81, 0, 0, 0}} {
		tagged := append(append(append([]byte(nil), good[:12]...), tag...), good[12:]...)
		b.expect(out, tagged, false, bpfobj.DropNotIP)
	}
}

// IPv4 options up to the longest header move the ports, but not beyond the end of the packet.
func TestIPv4Options(t *testing.T) {
	b := newBench(t)
	for words := range 11 {
		port := uint16(1000 + words)
		h := ip4(out, layers.IPProtocolTCP)
		for range words * 4 {
			h.Options = append(h.Options, layers.IPv4Option{OptionType: 1})
		}
		b.expect(out, frame(out, h, tcp(port, 81, "S")), false, bpfobj.CountEgressDeny)
		f := frame(out, h, tcp(port, 80, "S"))
		if length := int(f[14] & 0xf); length != 5+words {
			t.Fatalf("header has %d words, want %d", length, 5+words)
		}
		b.expect(out, f, true, bpfobj.CountEgressAllow)
		b.expect(out, f[:14+20+words*4+10], false, bpfobj.DropMalformed)
	}
}

// extension returns an IPv6 extension header of a length in bytes, a multiple of 8.
func extension(next byte, length int) []byte {
	h := make([]byte, length)
	h[0], h[1] = next, byte(length/8-1)
	return h
}

// authentication returns an authentication header of 24 bytes. It states its length in units of four bytes, without the first
// eight bytes.
func authentication(next byte) []byte {
	h := make([]byte, 24)
	h[0], h[1] = next, 4
	return h
}

const (
	hopByHop, routing, fragmented, esp, ah, noNext, options, mobility = 0, 43, 44, 50, 51, 59, 60, 135
	tcpNext, udpNext                                                  = 6, 17
)

// chain puts extension headers between the IPv6 header and the transport.
func chain(d way, first layers.IPProtocol, headers [][]byte, l4 ...gopacket.SerializableLayer) []byte {
	ls := []gopacket.SerializableLayer{ip6(d, first)}
	for _, h := range headers {
		ls = append(ls, gopacket.Payload(h))
	}
	return frame(d, append(ls, l4...)...)
}

// The parser follows chains of extension headers to the transport header, which decides.
func TestExtensionHeaderChains(t *testing.T) {
	b := newBench(t)
	port := uint16(1000)
	whole := []byte{tcpNext, 0, 0, 0, 0, 0, 0, 1} // the fragment header of a whole packet
	for name, c := range map[string]struct {
		first   layers.IPProtocol
		headers [][]byte
	}{
		"hop by hop":              {hopByHop, [][]byte{extension(tcpNext, 8)}},
		"long hop by hop":         {hopByHop, [][]byte{extension(tcpNext, 64)}},
		"in the order of the RFC": {hopByHop, [][]byte{extension(options, 16), extension(fragmented, 24), append([]byte{options}, whole[1:]...), extension(tcpNext, 8)}},
		"options":                 {options, [][]byte{extension(tcpNext, 24)}},
		"whole fragment":          {fragmented, [][]byte{whole}},
		"authentication":          {ah, [][]byte{authentication(tcpNext)}},
		"authentication, options": {ah, [][]byte{authentication(options), extension(tcpNext, 16)}},
		"six options":             {options, [][]byte{extension(options, 8), extension(options, 8), extension(options, 8), extension(options, 8), extension(options, 8), extension(tcpNext, 8)}},
	} {
		t.Run(name, func(t *testing.T) {
			port++
			b.expect(out, chain(out, c.first, c.headers, tcp(port, 81, "S")), false, bpfobj.CountEgressDeny)
			b.expect(out, chain(out, c.first, c.headers, tcp(port, 80, "S")), true, bpfobj.CountEgressAllow)
			b.expect(in, frame(in, ip6(in, layers.IPProtocolTCP), tcp(80, port, "SA")), true, nothing)
		})
	}
}

// A pod sends no packet that routers would send on to other destinations than the one that policy decides on: with a routing header,
// whatever it holds, or with a source route of IPv4. Nor does it receive one with a source route.
func TestSourceRoutes(t *testing.T) {
	b := newBench(t)
	b.under(tableOpen)
	left := []byte{tcpNext, 2, 4, 1, 23: 0}
	b.expect(out, chain(out, routing, [][]byte{left}, tcp(1000, 80, "S")), false, bpfobj.DropMalformed)
	b.expect(out, chain(out, routing, [][]byte{extension(tcpNext, 8)}, tcp(1000, 80, "S")), false, bpfobj.DropMalformed)
	b.expect(out, chain(out, options, [][]byte{extension(routing, 8), left}, tcp(1000, 80, "S")), false, bpfobj.DropMalformed)
	b.expect(out, chain(out, routing, [][]byte{extension(options, 8), extension(tcpNext, 8)}, tcp(1000, 80, "S")), false, bpfobj.DropMalformed)
	b.expect(in, chain(in, routing, [][]byte{extension(tcpNext, 8)}, tcp(1000, 80, "S")), true, bpfobj.CountIngressAllow)
	none := layers.IPv4Option{OptionType: 1}
	record := layers.IPv4Option{OptionType: 7, OptionLength: 7, OptionData: []byte{8, 131, 137, 131}}
	for d, allowed := range map[way]int{out: bpfobj.CountEgressAllow, in: bpfobj.CountIngressAllow} {
		for _, kind := range []uint8{131, 137} {
			route := layers.IPv4Option{OptionType: kind, OptionLength: 7, OptionData: []byte{4, 10, 0, 0, 9}}
			with := func(options ...layers.IPv4Option) []byte {
				h := ip4(d, layers.IPProtocolTCP)
				h.Options = options
				return frame(d, h, tcp(uint16(kind), 80, "S"))
			}
			b.expect(d, with(route, none), false, bpfobj.DropMalformed)
			b.expect(d, with(none, record, route), false, bpfobj.DropMalformed)
			b.expect(d, with(record, none), true, allowed)
			raw := with(none, none, none, none, none, none, none, none, none, none, none, none)
			copy(raw[14+20:], []byte{0, kind, 7, 4, 10, 0, 0, 9}) // padding
			b.expect(d, raw, true, nothing)
			copy(raw[14+20:], []byte{7, 1}) // too short
			b.expect(d, raw, false, bpfobj.DropMalformed)
		}
	}
}

// A header that the parser does not know is a protocol of its own. Its payload is not parsed,
// and only rules without ports allow it.
func TestOpaqueHeaders(t *testing.T) {
	b := newBench(t)
	for _, next := range []layers.IPProtocol{esp, noNext, mobility} {
		b.under(tableWeb)
		f := chain(out, next, [][]byte{extension(tcpNext, 8)}, tcp(1000, 80, "S"))
		b.expect(out, f, false, bpfobj.CountEgressDeny)
		b.under(tableOut)
		b.expect(out, f, true, bpfobj.CountEgressAllow)
		if t.Failed() {
			t.Fatalf("next header %d", next)
		}
	}
	b.under(tableOpen)
	b.expect(out, chain(out, fragmented, [][]byte{{fragmented, 0, 0, 0, 0, 0, 0, 1}, {tcpNext, 0, 0, 1, 0, 0, 0, 2}}, tcp(1000, 80, "S")),
		true, bpfobj.CountEgressAllow) // the first fragment header was of a whole packet
	b.expect(out, chain(out, fragmented, [][]byte{{fragmented, 0, 0, 1, 0, 0, 0, 3}, {tcpNext, 0, 0, 1, 0, 0, 0, 4}}, tcp(1000, 80, "S")),
		false, bpfobj.DropMalformed)
}

// Later fragments are dropped if they come before the first one. After it they share its
// verdict, that of the last first fragment.
func TestFragmentsOutOfOrder(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		b := newBench(t)
		piece := func(offset uint16, more bool, dst uint16) []byte {
			var l4 []gopacket.SerializableLayer
			if offset == 0 {
				l4 = append(l4, udp(1000, dst))
			}
			l4 = append(l4, payload)
			if v6 {
				h := []byte{udpNext, 0, byte(offset << 3 >> 8), byte(offset << 3), 0, 0, 0, 77}
				if more {
					h[3] |= 1
				}
				return chain(out, fragmented, [][]byte{h}, l4...)
			}
			h := ip4(out, layers.IPProtocolUDP)
			h.Id, h.FragOffset = 77, offset
			if more {
				h.Flags = layers.IPv4MoreFragments
			}
			return frame(out, append([]gopacket.SerializableLayer{h}, l4...)...)
		}
		b.expect(out, piece(10, false, 0), false, bpfobj.DropFragment)
		b.expect(out, piece(5, true, 0), false, bpfobj.DropFragment)
		b.expect(out, piece(0, true, 80), true, bpfobj.CountEgressAllow)
		b.expect(out, piece(10, false, 0), true, nothing)
		b.expect(out, piece(5, true, 0), true, nothing)
		b.expect(out, piece(5, true, 0), true, nothing) // a duplicate
		b.expect(out, piece(1, true, 0), true, nothing) // overlaps the first fragment, whose ports stay
		// Another first fragment with the same ID.
		b.expect(out, piece(0, true, 81), false, bpfobj.CountEgressDeny)
		b.expect(out, piece(5, true, 0), false, bpfobj.CountEgressDeny)
	})
}
