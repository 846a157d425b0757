// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// portMappings are the policies by which ports of the node lead to the pod: one
// for each host port and family that the pod has an address of. HNS knows them
// for TCP and UDP.
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
