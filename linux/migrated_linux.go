// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"fmt"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/linux/foreign"
	"github.com/isthmus-net/isthmus/linux/link"
)

// addMigrated attaches the programs to an interface that another CNI plugin made and that isthmusctl migrate
// gave the form of mode full. It makes no interface, and does not touch the pod.
func (b *Backend) addMigrated(spec dataplane.EndpointSpec) (dataplane.Attachment, error) {
	end, err := foreign.Find(spec.NetNS, spec.IfName, spec.IPs)
	if err != nil {
		return dataplane.Attachment{}, err
	}
	if end.Bridge != 0 || end.Name != link.HostName(spec.ID) {
		return dataplane.Attachment{}, fmt.Errorf("interface %s of pod %s is not migrated: run isthmusctl migrate run: %w", end.Name, spec.Pod, dataplane.ErrInterfaceKind)
	}
	pair := link.Pair{Name: end.Name, Index: end.Index, HostMAC: end.HostMAC, PodMAC: end.PodMAC}
	s := link.PairSpec{ID: spec.ID, NetNS: spec.NetNS, IfName: spec.IfName, IPs: spec.IPs, MTU: end.MTU, Sources: b.sources, Taken: &pair}
	_, known := b.specs[spec.ID]
	b.pods[spec.ID] = spec.Pod
	if err := b.attach(s, pair); err != nil {
		if !known {
			delete(b.pods, spec.ID)
		}
		return dataplane.Attachment{}, err
	}
	b.specs[spec.ID] = s
	b.components.EndpointAdded(spec)
	a := dataplane.Attachment{HostIfName: pair.Name, HostMAC: pair.HostMAC, MAC: pair.PodMAC, MTU: end.MTU}
	for _, ip := range spec.IPs {
		a.Addresses = append(a.Addresses, netip.PrefixFrom(ip, ip.BitLen()))
	}
	return a, nil
}
