// SPDX-License-Identifier: Apache-2.0

package path

import (
	"net/netip"

	"github.com/isthmus-net/isthmus/test/path/reference"
)

// translateError translates an ICMP error as netfilter does: connection tracking finds the flow by the quoted packet, which a
// router or an end of the flow returns as it received it. The error then gets the addresses of the other side, and so does the
// quote. Errors that do not go to the sender of the quoted packet are invalid: they stay as they are.
func (r *Runner) translateError(p *reference.Packet) (*reference.Packet, *translation) {
	q := p.Quote
	whole := q != nil && !p.Short && p.Cut == 0 && p.Fragment == reference.Whole && q.Fragment != reference.LaterFragment
	if !whole || !reference.HasPorts(q.Proto) || p.Dst != q.Src {
		return p, nil
	}
	src, dst := q.Ends()
	var own, other, outer netip.AddrPort // of the quoted packet on the other side, and as it is
	var now translation
	if t := r.track.sent(dst, src, q.Proto); t != nil { // the client received it
		own, other, outer = t.to, t.from, t.src
		now.ipvs = t.ipvs
	} else if t := r.track.answered(dst, src, q.Proto); t != nil { // the backend received it
		own, other, outer = t.src, t.dst, t.to
	} else {
		return p, nil
	}
	if other != outer { // otherwise the address of the router stays
		now.src = netip.AddrPortFrom(other.Addr(), 0)
	}
	quote := *q
	quote.Src, quote.Sport = own.Addr(), own.Port()
	quote.Dst, quote.Dport = other.Addr(), other.Port()
	p.Quote, p.Dst = &quote, own.Addr()
	return p, &now
}
