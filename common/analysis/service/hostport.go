// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// HostPort returns the connection to the pod that has a port of its node as a host port, and reports whether there is one. at is
// the address and port that a client with the addresses from calls. The node replaces the destination and keeps the client. A port
// of a Service (AtNode) comes first.
func (t *Services) HostPort(at netip.AddrPort, protocol model.Protocol, from []netip.Addr) (Connection, bool) {
	n := t.owners.Nodes[at.Addr()]
	if n == nil {
		return Connection{}, false
	}
	sameFamily := func(a netip.Addr) bool { return a.Is4() == at.Addr().Is4() }
	client := slices.IndexFunc(from, sameFamily)
	for _, p := range t.hostPorts[n.Name] {
		own := slices.IndexFunc(p.IPs, sameFamily)
		h, ok := p.HostPort(at, protocol)
		if !ok || own < 0 || client < 0 {
			continue
		}
		f := model.Flow{Src: from[client], Dst: p.IPs[own], Protocol: protocol, Port: h.Port}
		c := Connection{Backend: Backend{Name: p.PodID.String(), Addresses: p.IPs, Port: f.Port}, Egress: f, Ingress: f}
		if t.nodeOf(f.Src) != n.Name {
			c.Egress.Dst, c.Egress.Port = at.Addr(), at.Port()
		}
		return c, true
	}
	return Connection{}, false
}
