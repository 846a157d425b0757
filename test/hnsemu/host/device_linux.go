// SPDX-License-Identifier: Apache-2.0

package host

import (
	"github.com/isthmus-net/isthmus/test/hnsemu/vfp"
	"github.com/isthmus-net/isthmus/test/netns"
)

// Names of the devices of ports.
const (
	podDevice  = "eth0"
	hostDevice = "vEthernet"
)

// underlay opens the VXLAN port of this process's namespace.
func (h *Host) underlay() (vfp.Underlay, error) { return vfp.OpenUnderlay(nil, h.sw) }

// open makes the device of a port. The host's device is in the namespace of this process.
func (h *Host) open(spec vfp.Spec) (vfp.Device, error) {
	if spec.Host {
		return vfp.OpenTap(nil, hostDevice, spec, h.sw)
	}
	return vfp.OpenTap(netns.At(spec.NetNS), podDevice, spec, h.sw)
}
