// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"net/netip"
	"slices"
	"strings"
)

// IP protocols that the packet path treats specially.
const (
	ICMP   = 1
	TCP    = 6
	UDP    = 17
	ICMPv6 = 58
	SCTP   = 132
)

// The position of a packet in a fragmented datagram.
const (
	Whole = iota
	FirstFragment
	LaterFragment
)

// Packet is an Ethernet frame as a value. Its text omits zero fields.
type Packet struct {
	// Ether is "" for IP, "arp", "other" for an unknown protocol, or "tag" for a truncated VLAN tag.
	Ether string `json:"ether,omitempty"`
	// Tags is the number of VLAN tags before IP: those of 802.1ad, then those of 802.1Q.
	Tags int `json:"tags,omitempty"`
	// Version is the value of the version field in the IP header; 0 means the correct one.
	Version uint8 `json:"version,omitempty"`
	// Lengthless is true if the header length of IPv4 is too short.
	Lengthless bool `json:"lengthless,omitempty"`
	// Piece is the number of bytes after the Ethernet header in the first buffer of a scattered frame; 0 means
	// all. Few devices deliver scattered frames.
	Piece int `json:"piece,omitempty"`
	// ForeignMAC is true if the source MAC is not the MAC of the sender.
	ForeignMAC bool `json:"foreignMAC,omitempty"`

	Src   netip.Addr `json:"src,omitzero"`
	Dst   netip.Addr `json:"dst,omitzero"`
	Proto uint8      `json:"proto,omitempty"`
	// Sport and Dport are the ports of TCP, UDP and SCTP. Sport is the identifier of
	// an ICMP echo message.
	Sport uint16 `json:"sport,omitempty"`
	Dport uint16 `json:"dport,omitempty"`
	// Flags are those of TCP: letters of "SAFRPU".
	Flags string `json:"flags,omitempty"`
	Seq   uint32 `json:"seq,omitempty"`
	Ack   uint32 `json:"ack,omitempty"`
	// Type is that of an ICMP message.
	Type uint8 `json:"type,omitempty"`
	// Size is the length of the payload in bytes.
	Size int `json:"size,omitempty"`

	// Hops is the TTL or hop limit; 0 means 64.
	Hops uint8 `json:"hops,omitempty"`
	// Options are bytes of IPv4 options, a multiple of 4.
	Options int `json:"options,omitempty"`
	// SourceRoute is the type of the last option: 131 or 137 for a source route, 0 for none.
	SourceRoute uint8 `json:"sourceRoute,omitempty"`
	// Extensions are the IPv6 extension headers: the protocol number, plus 256 for each eight bytes after the
	// first eight. 44 is a fragment header of a packet that is not fragmented.
	Extensions []int `json:"extensions,omitempty"`
	// Behind is the number of Extensions after the fragment header of a fragment.
	Behind int `json:"behind,omitempty"`

	Fragment int    `json:"fragment,omitempty"`
	ID       uint32 `json:"id,omitempty"`

	// Cut is the number of bytes that remain of a truncated IP packet; 0 means all.
	Cut int `json:"cut,omitempty"`
	// Claims is the value of the length field in the IP header; 0 means the correct one.
	Claims int `json:"claims,omitempty"`

	// Quote is the packet that an ICMP error quotes. Short leaves out its ports.
	Quote *Packet `json:"quote,omitempty"`
	Short bool    `json:"short,omitempty"`

	// Inner is the packet in a VXLAN datagram with the VNI of the cluster, or another one.
	Inner    *Packet `json:"inner,omitempty"`
	OtherVNI bool    `json:"otherVNI,omitempty"`

	// ARP: the operation, and whether the message claims the sender's own address and MAC.
	Operation  uint16 `json:"operation,omitempty"`
	ARPAddress string `json:"arpAddress,omitempty"` // "", "none" or "foreign"
	ARPForeign bool   `json:"arpForeign,omitempty"`
}

// V6 reports whether p is an IPv6 packet.
func (p *Packet) V6() bool { return p.Src.Is6() }

// HopLimit is the TTL or hop limit in the header.
func (p *Packet) HopLimit() uint8 {
	if p.Hops == 0 {
		return 64
	}
	return p.Hops
}

func (p *Packet) flag(letter string) bool { return strings.Contains(p.Flags, letter) }

// HasPorts reports whether the protocol has ports that policy distinguishes.
func HasPorts(proto uint8) bool { return proto == TCP || proto == UDP || proto == SCTP }

func (p *Packet) isICMP() bool {
	return p.Proto == ICMP && !p.V6() || p.Proto == ICMPv6 && p.V6()
}

// IsEcho reports whether p is an echo request or reply.
func (p *Packet) IsEcho() bool {
	if !p.isICMP() || p.Fragment == LaterFragment {
		return false
	}
	if p.V6() {
		return p.Type == 128 || p.Type == 129
	}
	return p.Type == 8 || p.Type == 0
}

// IsError reports whether p is an ICMP error that quotes a packet.
func (p *Packet) IsError() bool {
	if !p.isICMP() || p.Fragment == LaterFragment {
		return false
	}
	if p.V6() {
		return p.Type >= 1 && p.Type <= 4
	}
	return p.Type == 3 || p.Type == 11 || p.Type == 12
}

// isOddError reports whether connection tracking takes p for an error, although no pod has a reason to send it.
func (p *Packet) isOddError() bool {
	if !p.isICMP() || p.Fragment == LaterFragment || p.IsError() {
		return false
	}
	if p.V6() {
		return p.Type < 128
	}
	return p.Type == 4 || p.Type == 5
}

// Opens reports whether p requests a new flow: a SYN without ACK, or an echo request.
func (p *Packet) Opens() bool {
	if p.Fragment == LaterFragment {
		return false
	}
	if p.Proto == TCP {
		return p.flag("S") && !p.flag("A")
	}
	return p.IsEcho() && (p.Type == 8 || p.Type == 128)
}

// IsDiscovery reports whether p is a message of neighbour or listener discovery that no router can have forwarded
// (RFC 4861, 6.1 and 7.1; RFC 3810, 5; RFC 6980), and whether only routers send it.
func (p *Packet) IsDiscovery() (discovery, router bool) {
	if !p.isICMP() || !p.V6() || p.Fragment != Whole || slices.Contains(p.Extensions, 44) {
		return false, false
	}
	link := p.Dst.IsLinkLocalUnicast() || p.Dst.IsLinkLocalMulticast()
	switch p.Type {
	case 135, 136:
		return p.HopLimit() == 255, false
	case 133:
		return p.HopLimit() == 255 && link, false
	case 134, 137:
		return p.HopLimit() == 255 && link && p.Src.IsLinkLocalUnicast(), true
	case 130, 131, 132, 143:
		return p.HopLimit() == 1 && link && (p.Src.IsLinkLocalUnicast() || p.Src.IsUnspecified()), false
	}
	return false, false
}

// sourceRouted reports whether an IPv4 packet names further destinations.
func (p *Packet) sourceRouted() bool { return !p.V6() && p.Options > 0 && p.SourceRoute != 0 }

// hasRoutingHeader reports whether a routing header is among the extension headers that the packet path reads.
func (p *Packet) hasRoutingHeader() bool {
	read := p.Extensions
	if p.Fragment == LaterFragment {
		read = read[:len(read)-p.Behind]
	}
	return p.V6() && slices.Contains(read, 43)
}

// network is the length of the IP header with options or extensions.
func (p *Packet) network() int {
	if !p.V6() {
		return 20 + p.Options
	}
	n := 40
	for i, h := range p.Extensions {
		if p.Fragment != LaterFragment || i < len(p.Extensions)-p.Behind {
			n += 8 + 8*(h>>8)
		}
	}
	if p.Fragment != Whole {
		n += 8
	}
	return n
}

// headersOfIP is the number of IPv6 headers before the transport header: the packet path reads eight.
func (p *Packet) headersOfIP() int {
	n := len(p.Extensions)
	if p.Fragment != Whole {
		n++
	}
	if p.Fragment == LaterFragment {
		n -= p.Behind
	}
	return n
}

// reaches reports whether the first eight bytes of each extension header are within the given number of bytes.
func (p *Packet) reaches(left int) bool {
	at := 40
	for _, h := range p.Extensions {
		if left < at+8 {
			return false
		}
		at += 8 + 8*(h>>8)
	}
	return true
}

// follows is the protocol after the last IP header that the packet path reads.
func (p *Packet) follows() uint8 {
	if p.Fragment == LaterFragment && p.Behind > 0 {
		return uint8(p.Extensions[len(p.Extensions)-p.Behind])
	}
	return p.Proto
}

// headers is the length of the headers that the packet path must read.
func (p *Packet) headers() int {
	n := p.network()
	switch {
	case p.Fragment == LaterFragment:
	case p.Proto == TCP:
		n += 20
	case HasPorts(p.Proto):
		n += 4
	case p.IsError() && p.V6():
		n += 8 + 40
	case p.IsError():
		n += 8 + 20
	case p.isICMP():
		n += 8
	}
	return n
}

// Length is the length of the whole IP packet.
func (p *Packet) Length() int {
	n := p.network()
	switch {
	case p.Fragment == LaterFragment:
	case p.Proto == TCP:
		n += 20
	case p.Proto == SCTP:
		n += 12
	case p.Proto == UDP && p.Inner != nil:
		n += 8 + 8 + 14 + p.Inner.Length()
	case p.Proto == UDP, p.isICMP():
		n += 8
	}
	if p.Quote != nil && p.IsError() {
		n += p.Quote.quoted(p.Short)
	}
	return n + p.Size
}

// quoted is the number of bytes that an ICMP error quotes of p.
func (p *Packet) quoted(short bool) int {
	if short {
		return p.network()
	}
	return p.network() + 8
}

// malformed reports whether the headers do not fit into the packet, or are too many.
func (p *Packet) malformed() bool {
	if p.Version != 0 || p.Lengthless {
		return true
	}
	left := p.Length()
	if p.Cut > 0 {
		left = min(left, p.Cut)
	}
	if left < p.headers() {
		return true
	}
	if n := p.headersOfIP(); p.V6() && (n > 8 || n == 8 && p.Fragment != LaterFragment) {
		return true
	}
	if p.Fragment == FirstFragment && slices.Contains(p.Extensions[len(p.Extensions)-p.Behind:], 44) {
		return true // a fragment of a fragment
	}
	if p.IsError() && (p.Quote == nil || p.Quote.V6() != p.V6()) {
		return true
	}
	read := p.headers()
	if p.IsError() { // the packet path reads as much of the quote as the packet contains
		options := 0
		if !p.V6() {
			options = p.Quote.Options
		}
		if left >= read+p.quotedRead() {
			read += p.quotedRead()
		} else if left >= read+options {
			read += options
		}
	}
	if p.V6() && p.Claims > 0 && p.Claims <= 40 {
		return false // length 0, as in packets above 64 KiB that the stack will segment
	}
	return p.Claims > 0 && p.Claims < read
}

// quotedRead is the number of bytes that the packet path reads after the quoted IP header without options.
func (p *Packet) quotedRead() int {
	q := p.Quote
	n := 0
	if !q.V6() {
		n = q.Options
		if q.Fragment == LaterFragment {
			return n
		}
	}
	if p.Short {
		return n
	}
	switch {
	case q.V6() && (len(q.Extensions) > 0 || q.Fragment != Whole):
	case HasPorts(q.Proto):
		n += 4
	case q.isICMP():
		n += 8
	}
	return n
}

// Ends returns the source and destination of the packet's flow.
func (p *Packet) Ends() (src, dst netip.AddrPort) {
	sport, dport := uint16(0), uint16(0)
	switch {
	case HasPorts(p.Proto) && p.Fragment != LaterFragment:
		sport, dport = p.Sport, p.Dport
	case p.IsEcho():
		sport, dport = p.Sport, p.Sport
	}
	return netip.AddrPortFrom(p.Src, sport), netip.AddrPortFrom(p.Dst, dport)
}
