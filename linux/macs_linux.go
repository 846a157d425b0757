// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"fmt"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/foreign"
)

// checkMAC returns an error if the bridge of an interface, or the pod at another of its ports, has the MAC of the interface.
// A process in a pod may change that MAC, and would get the packets of the other. The error wraps dataplane.ErrInterfaceKind.
func (b *Backend) checkMAC(id model.EndpointID, end foreign.HostEnd) error {
	if end.Bridge == 0 {
		return nil
	}
	if end.PodMAC.String() == end.HostMAC.String() {
		return fmt.Errorf("the pod's end of interface %s has the MAC %s, as has its bridge: %w", end.Name, end.PodMAC, dataplane.ErrInterfaceKind)
	}
	found, err := b.ends.List() // without those that wait for their DEL
	if err != nil {
		return err
	}
	for _, other := range found {
		if other.ID != id && other.Index != end.Index && other.Bridge == end.Bridge && other.PodMAC.String() == end.PodMAC.String() {
			return fmt.Errorf("the pod's end of interface %s has the MAC %s, as has endpoint %s at the same bridge: %w", end.Name, end.PodMAC, other.ID, dataplane.ErrInterfaceKind)
		}
	}
	return nil
}
