// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"fmt"
	"net/netip"
	"strings"
)

// Dump returns the plan as text, one item per line.
func (p *Plan) Dump() string {
	var b strings.Builder
	fmt.Fprintf(&b, "mtu %d\n", p.MTU)
	if t := p.Tunnel; t != nil {
		fmt.Fprintf(&b, "tunnel vni=%d port=%d local=%s mac=%s mtu=%d sources=%s\n", t.VNI, t.Port, t.Local, t.MAC, t.MTU, words(t.Sources))
	}
	for _, o := range p.Own {
		fmt.Fprintf(&b, "own %s\n", o)
	}
	for _, h := range p.Hops {
		fmt.Fprintf(&b, "hop %s\n", h)
	}
	for _, h := range p.Returns {
		fmt.Fprintf(&b, "return %s\n", h)
	}
	for _, s := range p.Senders {
		fmt.Fprintf(&b, "sender node=%s underlay=%s sources=%s\n", s.Node, words(s.Underlay), words(s.Sources))
	}
	if n := p.NAT; n != nil {
		fmt.Fprintf(&b, "masquerade %s\n", words(n.Sources))
		fmt.Fprintf(&b, "keep %s\n", words(n.Keep))
	}
	for _, t := range p.Problems {
		fmt.Fprintf(&b, "problem %s\n", t)
	}
	return b.String()
}

// String returns the hop in one line.
func (h Hop) String() string {
	s := fmt.Sprintf("%s node=%s %s %s", h.Prefix, h.Node, h.Via, h.Underlay)
	if h.Via == VXLAN {
		s += " mac=" + h.VTEP.String()
	}
	return s
}

func words[T netip.Addr | netip.Prefix](all []T) string {
	return strings.Trim(fmt.Sprint(all), "[]")
}
