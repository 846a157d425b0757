// SPDX-License-Identifier: Apache-2.0

package path

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/test/path/reference"
)

// hostMAC is the MAC of every device of the node.
var hostMAC = [6]byte{2, 0, 0, 0, 0, 0xfe}

// outerMAC is the MAC of other hosts.
var outerMAC = [6]byte{2, 0, 0, 0, 0, 9}

const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherVLAN = 0x8100
	etherIPv6 = 0x86dd
	etherQinQ = 0x88a8
)

// frame encodes a packet. Checksums are zero: no program reads them.
func frame(b []byte, p *reference.Packet, src, dst [6]byte) []byte {
	if p.ForeignMAC {
		src[5] ^= 0x55
	}
	b = append(append(b[:0], dst[:]...), src[:]...)
	switch p.Ether {
	case "arp":
		return cut(appendARP(binary.BigEndian.AppendUint16(b, etherARP), p, src), p)
	case "tag":
		return append(binary.BigEndian.AppendUint16(b, etherVLAN), 0, 5)
	case "other":
		return append(b, 0x88, 0xb5, 1, 2, 3, 4)
	}
	for i := range p.Tags {
		protocol := uint16(etherQinQ)
		if i == p.Tags-1 {
			protocol = etherVLAN
		}
		b = append(binary.BigEndian.AppendUint16(b, protocol), 0, 5)
	}
	b = appendPacket(b, p)
	ip := b[14+4*p.Tags:]
	if p.Version != 0 {
		ip[0] = ip[0]&0x0f | p.Version<<4
	}
	if p.Lengthless {
		ip[0] = ip[0]&0xf0 | 4
	}
	return b
}

// appendPacket encodes the part of a frame after its VLAN tags.
func appendPacket(b []byte, p *reference.Packet) []byte {
	if p.V6() {
		return cut(appendIP(binary.BigEndian.AppendUint16(b, etherIPv6), p), p)
	}
	return cut(appendIP(binary.BigEndian.AppendUint16(b, etherIPv4), p), p)
}

// cut truncates a frame to the number of bytes after the Ethernet header that the packet states.
func cut(b []byte, p *reference.Packet) []byte {
	if at := 14 + 4*p.Tags; p.Cut > 0 && len(b) > at+p.Cut {
		return b[:at+p.Cut]
	}
	return b
}

func appendARP(b []byte, p *reference.Packet, src [6]byte) []byte {
	b = append(b, 0, 1, 8, 0, 6, 4)
	b = binary.BigEndian.AppendUint16(b, p.Operation)
	if p.ARPForeign {
		src[4] ^= 0x55
	}
	b = append(b, src[:]...)
	sender := p.Src.As4()
	switch p.ARPAddress {
	case "none":
		sender = [4]byte{}
	case "foreign":
		sender[3] ^= 0x40
	}
	b = append(b, sender[:]...)
	return append(b, 0, 0, 0, 0, 0, 0, 169, 254, 1, 1)
}

func appendIP(b []byte, p *reference.Packet) []byte {
	length := p.Length()
	if p.Claims > 0 {
		length = p.Claims
	}
	if p.V6() {
		return appendTransport(appendIP6(b, p, length), p)
	}
	offset := uint16(0)
	switch p.Fragment {
	case reference.FirstFragment:
		offset = 0x2000
	case reference.LaterFragment:
		offset = 0x2000 | 64
	}
	b = append(b, byte(0x45+p.Options/4), 0)
	b = binary.BigEndian.AppendUint16(b, uint16(length))
	b = binary.BigEndian.AppendUint16(b, uint16(p.ID))
	b = binary.BigEndian.AppendUint16(b, offset)
	b = append(b, p.HopLimit(), p.Proto, 0, 0)
	src, dst := p.Src.As4(), p.Dst.As4()
	b = append(append(b, src[:]...), dst[:]...)
	for range p.Options {
		b = append(b, 1) // no operation
	}
	if p.SourceRoute != 0 && p.Options > 0 { // without hops
		copy(b[len(b)-3:], []byte{p.SourceRoute, 3, 4})
	}
	return appendTransport(b, p)
}

func appendIP6(b []byte, p *reference.Packet, length int) []byte {
	const fragmentHeader, authentication, fragment = 44, 51, -1
	headers := slices.Clone(p.Extensions)
	if p.Fragment != reference.Whole {
		headers = slices.Insert(headers, len(headers)-p.Behind, fragment)
	}
	next := func(i int) uint8 {
		switch {
		case i >= len(headers):
			return p.Proto
		case headers[i] == fragment:
			return fragmentHeader
		}
		return uint8(headers[i])
	}
	b = append(b, 0x60, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(max(0, length-40)))
	b = append(b, next(0), p.HopLimit())
	src, dst := p.Src.As16(), p.Dst.As16()
	b = append(append(b, src[:]...), dst[:]...)
	for i, h := range headers {
		switch h {
		case fragment:
			offset := uint16(1)
			if p.Fragment == reference.LaterFragment {
				offset |= 64 << 3
			}
			b = append(b, next(i+1), 0)
			b = binary.BigEndian.AppendUint16(b, offset)
			b = binary.BigEndian.AppendUint32(b, p.ID)
			if p.Fragment == reference.LaterFragment {
				return b // the rest was in the first fragment
			}
		case fragmentHeader: // of a packet that is not fragmented
			b = binary.BigEndian.AppendUint32(append(b, next(i+1), 0, 0, 0), p.ID)
		default:
			more := h >> 8
			length := byte(more)
			if uint8(h) == authentication {
				length *= 2 // in units of four bytes
			}
			b = append(b, next(i+1), length, 1, 4, 0, 0, 0, 0) // padding
			b = append(b, make([]byte, 8*more)...)
		}
	}
	return b
}

func appendTransport(b []byte, p *reference.Packet) []byte {
	icmp := p.Proto == reference.ICMP || p.Proto == reference.ICMPv6
	switch {
	case p.Fragment == reference.LaterFragment:
	case p.Proto == reference.TCP:
		b = appendTCP(b, p)
	case p.Proto == reference.UDP:
		b = binary.BigEndian.AppendUint16(b, p.Sport)
		b = binary.BigEndian.AppendUint16(b, p.Dport)
		b = append(b, 0, 0, 0, 0)
		if p.Inner != nil {
			own := byte(vni & 0xff)
			if p.OtherVNI {
				own++
			}
			b = append(b, 8, 0, 0, 0, byte(vni>>16), byte(vni>>8&0xff), own, 0)
			inner := append(frame(nil, p.Inner, hostMAC, hostMAC), make([]byte, p.Inner.Length())...)
			b = append(b, inner[:14+p.Inner.Length()]...)
		}
	case p.Proto == reference.SCTP:
		b = binary.BigEndian.AppendUint16(b, p.Sport)
		b = binary.BigEndian.AppendUint16(b, p.Dport)
		b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
	case icmp && (p.Proto == reference.ICMPv6) == p.V6():
		b = append(b, p.Type, 0, 0, 0)
		if !p.IsEcho() {
			b = append(b, 0, 0, 0, 0)
			break
		}
		b = binary.BigEndian.AppendUint16(b, p.Sport)
		b = append(b, 0, 1)
	case icmp: // the ICMP protocol number of the other IP version, which is not ICMP here
		for i := range p.Size {
			b = append(b, []byte{p.Type, 0, 0, 0, 0, 0, 0, 0}[i%8])
		}
		return b
	}
	if p.Quote != nil && p.IsError() {
		at := len(b)
		b = append(appendIP(b, p.Quote), make([]byte, 8)...)
		b = b[:at+quoted(p)]
	}
	return append(b, make([]byte, p.Size)...)
}

// quoted returns the number of bytes that an ICMP error quotes.
func quoted(p *reference.Packet) int {
	q := *p
	q.Quote = nil
	return p.Length() - q.Length()
}

func appendTCP(b []byte, p *reference.Packet) []byte {
	b = binary.BigEndian.AppendUint16(b, p.Sport)
	b = binary.BigEndian.AppendUint16(b, p.Dport)
	b = binary.BigEndian.AppendUint32(b, p.Seq)
	b = binary.BigEndian.AppendUint32(b, p.Ack)
	flags := byte(0)
	for _, f := range p.Flags {
		switch f {
		case 'F':
			flags |= 1
		case 'S':
			flags |= 2
		case 'R':
			flags |= 4
		case 'P':
			flags |= 8
		case 'A':
			flags |= 16
		case 'U':
			flags |= 32
		}
	}
	return append(b, 5<<4, flags, 0xff, 0xff, 0, 0, 0, 0)
}

// addrs parses addresses.
func addrs(texts ...string) (all []netip.Addr) {
	for _, t := range texts {
		all = append(all, netip.MustParseAddr(t))
	}
	return all
}
