// SPDX-License-Identifier: Apache-2.0

// Package hostport turns host ports of pods into policies of their HNS endpoints, and finds the ports in such policies. It lists
// the sockets of the host, whose ports no pod gets.
//
// The policies belong to an endpoint from its creation on, so it is not a component: package windows writes them. It
// does not call HNS.
package hostport

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// Policies returns the policies that forward ports of the node to a pod with the addresses ips: one for each host port
// and address family of the pod. HNS supports TCP and UDP. It would forward connections to any address, such as that of a
// Service or of another host, so that of a host port must be one of the node.
func Policies(ports []model.HostPort, ips, node []netip.Addr) ([]hns.Policy, error) {
	var list []hns.Policy
	for _, h := range ports {
		if !h.All() && !slices.Contains(node, h.Address) {
			return nil, fmt.Errorf("host port %s: it is not an address of the node, and HNS would take all connections to it: remove hostIP, or use one of %v", h, node)
		}
		if h.Protocol != model.TCP && h.Protocol != model.UDP {
			return nil, fmt.Errorf("host port %d/%s: HNS maps ports of TCP and UDP only: use a Service of type NodePort", h.Number, h.Protocol)
		}
		for _, v6 := range []bool{false, true} {
			if !h.Is(v6) || !slices.ContainsFunc(ips, func(a netip.Addr) bool { return a.Is6() == v6 }) {
				continue
			}
			m := hns.PortMapping{Protocol: uint32(h.Protocol), InternalPort: h.Port, ExternalPort: h.Number}
			if !h.All() {
				m.VIP = h.Address.String()
			}
			if v6 {
				m.Flags = hns.PortMappingIPv6
			}
			list = append(list, hns.MakePolicy(hns.TypePortMapping, m))
		}
	}
	return list, nil
}

// Mapped lists the ports of the node that policies forward to the pod, as "6/8080".
func Mapped(policies []hns.Policy) []string {
	var ports []string
	for _, p := range policies {
		var m hns.PortMapping
		if p.Is(hns.TypePortMapping) && p.Decode(&m) == nil {
			ports = append(ports, fmt.Sprintf("%d/%d", m.Protocol, m.ExternalPort))
		}
	}
	return ports
}
