// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/isthmus-net/isthmus/test/hnsemu/vfp"
	"github.com/isthmus-net/isthmus/test/netns"
)

// Names of the devices that ports lead to.
const (
	podDevice  = "eth0"
	hostDevice = "vEthernet"
)

// underlay takes the VXLAN port of this process's namespace.
func (n *node) underlay() (vfp.Underlay, error) { return vfp.OpenUnderlay(nil, n.sw) }

// open makes the device of a port: the host's in this process's namespace.
func (n *node) open(spec vfp.Spec) (vfp.Device, error) {
	if spec.Host {
		return vfp.OpenTap(nil, hostDevice, spec, n.sw)
	}
	return vfp.OpenTap(netns.At(spec.NetNS), podDevice, spec, n.sw)
}
