// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/linux/link"
)

// Way is how a pod range of another node is reached, by an Ethernet device.
type Way struct {
	Prefix netip.Prefix
	Device string
	Index  int
}

// Ways lists those that the plan has; known tells that there is one. There are no
// ways while the kernel has policies for IPsec: only its stack heeds them.
func (f *Fabric) Ways() (all []Way, known bool, err error) {
	if f.plan == nil {
		return nil, false, nil
	}
	if secured, err := hasIPsec(); err != nil || secured {
		return nil, true, err
	}
	for _, h := range f.plan.Hops {
		w := Way{Prefix: h.Prefix, Device: f.found.Name, Index: f.found.Index}
		if h.Via == fabric.VXLAN {
			w.Device, w.Index = Device, f.tunnel
		} else if !f.found.Ethernet {
			continue
		}
		if w.Index != 0 {
			all = append(all, w)
		}
	}
	return all, true, nil
}

func hasIPsec() (bool, error) {
	policies, err := link.Whole(func() ([]netlink.XfrmPolicy, error) { return netlink.XfrmPolicyList(netlink.FAMILY_ALL) })
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list policies for IPsec: %w", err)
	}
	for _, p := range policies {
		if p.Dir <= netlink.XFRM_DIR_FWD { // those of sockets concern nobody else
			return true, nil
		}
	}
	return false, nil
}
