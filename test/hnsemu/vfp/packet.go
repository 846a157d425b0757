// SPDX-License-Identifier: Apache-2.0

package vfp

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// Numbers of the protocols that the switch parses.
const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherIPv6 = 0x86DD

	protoICMP     = 1
	protoTCP      = 6
	protoUDP      = 17
	protoFragment = 44 // IPv6 extension header
	protoICMPv6   = 58
	protoSCTP     = 132

	etherHeader = 14
	ipv4Header  = 20
	ipv6Header  = 40
)

// packet holds the fields of a frame that decide. Numbers are in host order.
type packet struct {
	src, dst         netip.Addr
	protocol         uint8
	srcPort, dstPort uint16 // both are the identifier of an ICMP echo message
	// fragment identifies the fragments of one packet; later means that another fragment has the ports.
	fragment uint32
	first    bool // the first of several fragments
	later    bool
	// cut is true if the header of TCP or UDP is not complete.
	cut bool
	// quoted is the packet that an ICMP error quotes.
	quoted *packet
}

var (
	errShort = errors.New("packet is cut short")
	errNotIP = errors.New("not an IP packet")
)

// parseFrame reads an Ethernet frame with an IP packet.
func parseFrame(frame []byte) (packet, error) {
	if len(frame) < etherHeader {
		return packet{}, errShort
	}
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherIPv4:
		return parseIPv4(frame[etherHeader:], true)
	case etherIPv6:
		return parseIPv6(frame[etherHeader:], true)
	}
	return packet{}, errNotIP
}

// parseIPv4 parses a packet. It parses the packet that an ICMP error quotes only on request.
func parseIPv4(b []byte, quotes bool) (packet, error) {
	if len(b) < ipv4Header || b[0]>>4 != 4 {
		return packet{}, errShort
	}
	header := int(b[0]&0x0F) * 4
	if header < ipv4Header || len(b) < header {
		return packet{}, errShort
	}
	p := packet{protocol: b[9], src: netip.AddrFrom4([4]byte(b[12:16])), dst: netip.AddrFrom4([4]byte(b[16:20]))}
	field := binary.BigEndian.Uint16(b[6:])
	more, offset := field&0x2000 != 0, field&0x1FFF
	p.fragment = uint32(binary.BigEndian.Uint16(b[4:]))
	p.first, p.later = more && offset == 0, offset != 0
	return p, p.ports(b[header:], quotes)
}

// parseIPv6 reads a packet; of extension headers it knows those for options,
// routing and fragments.
func parseIPv6(b []byte, quotes bool) (packet, error) {
	if len(b) < ipv6Header || b[0]>>4 != 6 {
		return packet{}, errShort
	}
	p := packet{protocol: b[6], src: netip.AddrFrom16([16]byte(b[8:24])), dst: netip.AddrFrom16([16]byte(b[24:40]))}
	b = b[ipv6Header:]
	for !p.later {
		var size int
		switch {
		case p.protocol == 0 || p.protocol == 43 || p.protocol == 60:
			if len(b) < 8 {
				return p, errShort
			}
			size = 8 * (int(b[1]) + 1)
		case p.protocol == protoFragment:
			if len(b) < 8 {
				return p, errShort
			}
			size = 8
			field := binary.BigEndian.Uint16(b[2:])
			p.fragment = binary.BigEndian.Uint32(b[4:])
			p.first, p.later = field>>3 == 0 && field&1 != 0, field>>3 != 0
		default:
			return p, p.ports(b, quotes)
		}
		if len(b) < size {
			return p, errShort
		}
		p.protocol, b = b[0], b[size:]
	}
	return p, nil
}

// ports parses the part after the IP headers.
func (p *packet) ports(b []byte, quotes bool) error {
	if p.later {
		return nil
	}
	switch p.protocol {
	case protoTCP, protoUDP, protoSCTP:
		if len(b) < 4 {
			return errShort
		}
		p.srcPort, p.dstPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	case protoICMP, protoICMPv6:
		if len(b) < 8 {
			return errShort
		}
		p.icmp(b, quotes)
	}
	return nil
}

func (p *packet) icmp(b []byte, quotes bool) {
	kind := b[0]
	echo, failure := kind == 8 || kind == 0, kind == 3 || kind == 11 || kind == 12
	parse := parseIPv4
	if p.protocol == protoICMPv6 {
		echo, failure = kind == 128 || kind == 129, kind >= 1 && kind <= 4
		parse = parseIPv6
	}
	if echo {
		p.srcPort = binary.BigEndian.Uint16(b[4:])
		p.dstPort = p.srcPort
	}
	if failure && quotes {
		if q, err := parse(b[8:], false); err == nil {
			p.quoted = &q
		}
	}
}
