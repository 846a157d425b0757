// SPDX-License-Identifier: Apache-2.0

package reference

import "net/netip"

// Denied reports whether the deny list contains a source: uplinks drop its packets.
func (n *Node) Denied(a netip.Addr) bool {
	for _, exempt := range n.Exempt {
		if exempt == a {
			return false
		}
	}
	for _, p := range n.Deny {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// Uplink decides a frame at XDP, before the kernel allocates a packet (ADR 14).
func (n *Node) Uplink(p *Packet) Verdict {
	pass := Verdict{Fate: ToStack, Why: "not certain here"}
	left, least := p.left(), 20
	if p.V6() {
		least = 40
	}
	switch {
	case p.Tags > 2:
		return drop("more tags than the program reads")
	case p.Ether != "":
		return pass
	case left < least:
		return drop("malformed")
	case n.Denied(p.Src):
		return drop("deny list")
	case p.Piece > 0 && p.Piece < least:
		return pass // the program reads only the source of scattered headers
	case p.Version != 0 || p.Lengthless, !p.V6() && p.Claims > 0 && p.Claims < p.network():
		return drop("malformed")
	case !p.V6() && p.Fragment == LaterFragment || !p.mayOpen():
		return pass
	}
	pod := n.reachable(p.Dst)
	if pod == nil {
		return pass
	}
	if p.Piece > 0 && p.Piece < left { // the rest may be in the next buffer
		cut := *p
		cut.Cut = p.Piece
		if cut.malformed() {
			return pass
		}
	}
	if p.malformed() {
		return drop("malformed")
	}
	if !p.Opens() {
		return pass
	}
	_, dst := p.Ends()
	if !pod.Policy.Allows(Ingress, n.Party(p.Src), p.Proto, dst.Port()) {
		return drop("ingress policy")
	}
	return pass
}

// left is the number of bytes of the IP packet that the frame contains.
func (p *Packet) left() int {
	if p.Cut > 0 {
		return min(p.Length(), p.Cut)
	}
	return p.Length()
}

// mayOpen reports whether p may open a flow, judging by its first headers. Protocol numbers of IPv6 extension
// headers count as unknown, also in IPv4.
func (p *Packet) mayOpen() bool {
	left := p.left()
	if p.Piece > 0 {
		left = min(left, p.Piece)
	}
	if p.V6() && (len(p.Extensions) > 0 || p.Fragment != Whole) {
		return true
	}
	switch p.Proto {
	case 0, 43, 44, 51, 60:
		return true
	case TCP:
		return left < p.network()+20 || p.flag("S") && !p.flag("A")
	case ICMP:
		return left < p.network()+8 || p.Type == 8
	case ICMPv6:
		return left < p.network()+8 || p.Type == 128
	}
	return false
}
