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

// NodeRoute is the node route to a pod range of another node.
type NodeRoute struct {
	Prefix netip.Prefix
	Device string
	Index  int
	// Bypass is true if packets may use the fast path: the device has Ethernet frames, and no
	// feature requires the host stack.
	Bypass bool
}

// NodeRoutes lists the node routes that the plan has and the system uses; known reports whether there
// is a plan. No route allows the fast path while the kernel has IPsec policies, which only the
// host stack applies.
func (f *Fabric) NodeRoutes() (all []NodeRoute, known bool, err error) {
	if f.plan == nil {
		return nil, false, nil
	}
	secured, err := hasIPsec()
	if err != nil {
		return nil, true, err
	}
	for _, h := range f.plan.Hops {
		w := NodeRoute{Prefix: h.Prefix, Device: f.found.Name, Index: f.found.Index, Bypass: !secured && f.found.Ethernet}
		if h.Via == fabric.VXLAN {
			w.Device, w.Index, w.Bypass = Device, f.tunnel, !secured
		}
		if w.Index != 0 && !f.foreign[h.Prefix] {
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
		return false, fmt.Errorf("list IPsec policies: %w", err)
	}
	for _, p := range policies {
		if p.Dir <= netlink.XFRM_DIR_FWD { // policies of sockets apply only to those sockets
			return true, nil
		}
	}
	return false, nil
}
