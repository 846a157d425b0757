// SPDX-License-Identifier: Apache-2.0

package vfp

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// Layout of ARP for IPv4 on Ethernet, from the start of the frame.
const (
	arpOperation = etherHeader + 6
	arpSender    = etherHeader + 8
	arpTarget    = etherHeader + 18
	arpSize      = etherHeader + 28
	arpRequest   = 1
	arpReply     = 2
)

// Layout of neighbour solicitations and advertisements (RFC 4861).
const (
	ndType         = etherHeader + ipv6Header
	ndTarget       = ndType + 8
	ndOption       = ndTarget + 16
	ndSize         = ndOption + 8
	ndSolicitation = 135
	ndAdvert       = 136
	ndTargetOption = 2
	ndSolicited    = 0x60000000 // solicited, override
)

// neighbour answers ARP and neighbour solicitations as a proxy for the port that has the address, or for the
// host, which routes. The switch never floods. It returns nil for other frames.
func (s *Switch) neighbour(from *port, frame []byte) []byte {
	if len(frame) < etherHeader {
		return nil
	}
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherARP:
		if len(frame) < arpSize || binary.BigEndian.Uint16(frame[arpOperation:]) != arpRequest {
			return nil
		}
		wanted := netip.AddrFrom4([4]byte(frame[arpTarget+6:]))
		if mac := s.whoHas(from, wanted); mac != nil {
			return arpAnswer(frame, mac, wanted)
		}
	case etherIPv6:
		if len(frame) < ndTarget+16 || frame[etherHeader+6] != protoICMPv6 || frame[ndType] != ndSolicitation {
			return nil
		}
		wanted := netip.AddrFrom16([16]byte(frame[ndTarget:]))
		source := netip.AddrFrom16([16]byte(frame[etherHeader+8:]))
		if mac := s.whoHas(from, wanted); mac != nil && !source.IsUnspecified() { // otherwise the sender probes for a duplicate address
			return ndAnswer(frame, mac, wanted, source)
		}
	}
	return nil
}

func (s *Switch) whoHas(from *port, a netip.Addr) net.HardwareAddr {
	owner := s.owners[a]
	if owner == nil {
		owner = s.host
	}
	if owner == nil && s.tunnel != nil {
		return s.tunnel.MAC // the gateway of an overlay network
	}
	if owner == nil || owner == from {
		return nil
	}
	return owner.mac
}

func arpAnswer(question []byte, mac net.HardwareAddr, wanted netip.Addr) []byte {
	answer := make([]byte, arpSize)
	copy(answer, question[6:12])
	copy(answer[6:], mac)
	copy(answer[12:], question[12:arpOperation])
	binary.BigEndian.PutUint16(answer[arpOperation:], arpReply)
	copy(answer[arpSender:], mac)
	copy(answer[arpSender+6:], wanted.AsSlice())
	copy(answer[arpTarget:], question[arpSender:arpSender+10])
	return answer
}

func ndAnswer(question []byte, mac net.HardwareAddr, wanted, asker netip.Addr) []byte {
	answer := make([]byte, ndSize)
	copy(answer, question[6:12])
	copy(answer[6:], mac)
	binary.BigEndian.PutUint16(answer[12:], etherIPv6)
	ip := answer[etherHeader:]
	ip[0] = 6 << 4
	binary.BigEndian.PutUint16(ip[4:], ndSize-ndType)
	ip[6], ip[7] = protoICMPv6, 255
	copy(ip[8:], wanted.AsSlice())
	copy(ip[24:], asker.AsSlice())
	answer[ndType] = ndAdvert
	binary.BigEndian.PutUint32(answer[ndType+4:], ndSolicited)
	copy(answer[ndTarget:], wanted.AsSlice())
	answer[ndOption], answer[ndOption+1] = ndTargetOption, 1
	copy(answer[ndOption+2:], mac)
	binary.BigEndian.PutUint16(answer[ndType+2:], icmpv6Sum(ip))
	return answer
}

// icmpv6Sum returns the checksum of an ICMPv6 packet whose checksum field is 0.
func icmpv6Sum(ip []byte) uint16 {
	sum := uint32(protoICMPv6) + uint32(len(ip)-ipv6Header)
	for i := 8; i < len(ip); i += 2 { // both addresses and what follows them
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xFFFF {
		sum = sum>>16 + sum&0xFFFF
	}
	return ^uint16(sum)
}
