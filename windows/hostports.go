// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// portMappings returns the policies that forward ports of the node to the pod: one for each host port and
// address family of the pod. HNS supports TCP and UDP.
func (b *Backend) portMappings(spec dataplane.EndpointSpec) ([]hns.Policy, error) {
	var list []hns.Policy
	for _, h := range spec.HostPorts {
		if h.Protocol != model.TCP && h.Protocol != model.UDP {
			return nil, fmt.Errorf("host port %d/%s: HNS maps ports of TCP and UDP only: use a Service of type NodePort", h.Number, h.Protocol)
		}
		for _, v6 := range []bool{false, true} {
			if !h.Is(v6) || !slices.ContainsFunc(spec.IPs, func(a netip.Addr) bool { return a.Is6() == v6 }) {
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

// portTaken handles an error of HNS that a port of a new endpoint is in use. It removes one of our
// endpoints that has the port and is in no namespace, and returns nil: the caller retries. Otherwise the
// error names the owner of the port, or where to look.
func (b *Backend) portTaken(ctx context.Context, n *hns.Network, want hns.Endpoint, cause error) error {
	ports := mappedPorts(want.Policies)
	if len(ports) == 0 {
		return fmt.Errorf("create hns endpoint: no range of ports is left for outbound NAT, or Windows reserves them: "+
			"check netsh int ipv4 show excludedportrange and vfpctrl /list-nat-range, and restart the hns service: %w", cause)
	}
	list, err := b.listEndpoints(ctx, n.ID)
	if err != nil {
		return errors.Join(cause, err)
	}
	for i := range list {
		e := &list[i]
		if !slices.ContainsFunc(mappedPorts(e.Policies), func(p string) bool { return slices.Contains(ports, p) }) {
			continue
		}
		if _, ours := b.config.parseEndpointName(e.Name); !ours || e.HostComputeNamespace != "" {
			return fmt.Errorf("create hns endpoint: a host port of the pod (%s) is in use on this node by endpoint %q: free it or use another host port: %w", strings.Join(ports, ", "), e.Name, cause)
		}
		b.log.Warn("removing a stale endpoint that has a host port", "endpoint", e.Name)
		b.config.Step("remove stale endpoint")
		if err := b.remove(ctx, e); err != nil {
			return fmt.Errorf("remove stale endpoint %q: %w", e.Name, err)
		}
		return nil
	}
	return fmt.Errorf("create hns endpoint: a host port of the pod (%s) is in use on this node, but by no HNS endpoint: a program uses it, Windows reserves it "+
		"(netsh int ipv4 show excludedportrange), or HNS did not free it and must be restarted; or use another host port: %w", strings.Join(ports, ", "), cause)
}

// mappedPorts lists the ports of the node that policies forward to the pod, as "6/8080".
func mappedPorts(policies []hns.Policy) []string {
	var ports []string
	for _, p := range policies {
		var m hns.PortMapping
		if p.Is(hns.TypePortMapping) && p.Decode(&m) == nil {
			ports = append(ports, fmt.Sprintf("%d/%d", m.Protocol, m.ExternalPort))
		}
	}
	return ports
}
