// SPDX-License-Identifier: Apache-2.0

package vfp

import (
	"encoding/binary"
	"net/netip"
)

// Offsets of checksums.
const (
	ipv4Checksum = 10
	tcpChecksum  = 16
	udpChecksum  = 6
)

// rewrite changes the addresses and ports of a frame, and updates its checksums. The frame must have passed
// parseFrame, and contain TCP or UDP.
func rewrite(frame []byte, in *packet, to tuple) {
	ip := frame[etherHeader:]
	addresses, header := ip[12:20], int(ip[0]&0x0F)*4
	if in.src.Is6() {
		addresses, header = ip[8:40], ipv6Header+extensions(ip)
	}
	transport := ip[header:]
	at := tcpChecksum
	if in.protocol == protoUDP {
		at = udpChecksum
	}
	field := transport[at:]
	old := append([]byte(nil), addresses...)
	copy(addresses, to.src.Addr().AsSlice())
	copy(addresses[len(addresses)/2:], to.dst.Addr().AsSlice())
	if in.src.Is4() {
		adjust(ip[ipv4Checksum:], old, addresses)
	}
	oldPorts := append(old, transport[:4]...)
	binary.BigEndian.PutUint16(transport, to.src.Port())
	binary.BigEndian.PutUint16(transport[2:], to.dst.Port())
	none := in.protocol == protoUDP && binary.BigEndian.Uint16(field) == 0 // the sender did not compute a checksum
	if !none {
		adjust(field, oldPorts, append(append([]byte(nil), addresses...), transport[:4]...))
		if in.protocol == protoUDP && binary.BigEndian.Uint16(field) == 0 {
			binary.BigEndian.PutUint16(field, 0xFFFF)
		}
	}
	in.src, in.srcPort, in.dst, in.dstPort = to.src.Addr(), to.src.Port(), to.dst.Addr(), to.dst.Port()
}

// extensions is the length of an IPv6 packet's extension headers.
func extensions(ip []byte) (n int) {
	for next := ip[6]; ; {
		h := ip[ipv6Header+n:]
		switch next {
		case 0, 43, 60:
			n += 8 * (int(h[1]) + 1)
		case protoFragment: // a fragment header of a packet that is not fragmented
			n += 8
		default:
			return n
		}
		next = h[0]
	}
}

// adjust changes a checksum for bytes that were replaced (RFC 1624).
func adjust(field, was, is []byte) {
	sum := uint32(^binary.BigEndian.Uint16(field))
	for i := 0; i < len(was); i += 2 {
		sum += uint32(^binary.BigEndian.Uint16(was[i:])) + uint32(binary.BigEndian.Uint16(is[i:]))
	}
	for sum > 0xFFFF {
		sum = sum>>16 + sum&0xFFFF
	}
	binary.BigEndian.PutUint16(field, ^uint16(sum))
}

// whole reports whether a frame contains the complete header that rewrite changes.
func whole(frame []byte, in *packet) bool {
	ip := frame[etherHeader:]
	header := int(ip[0]&0x0F) * 4
	if in.src.Is6() {
		header = ipv6Header + extensions(ip)
	}
	need := udpChecksum + 2
	if in.protocol == protoTCP {
		need = tcpChecksum + 2
	}
	return len(ip) >= header+need
}

// addressOf parses an address. The result is invalid if the text is not an address.
func addressOf(text string) netip.Addr {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}
	}
	return a
}
