// SPDX-License-Identifier: Apache-2.0

package hostfabric

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/windows/hostroute"
)

// intent holds the routes and flags that the host should have.
type intent struct {
	routes []hostroute.Route
	// owners maps the destinations of routes to the nodes that have them.
	owners     map[netip.Prefix]string
	forwarding []flag
	// uplinks are the interfaces to other nodes.
	uplinks  []hostroute.Interface
	problems []string
}

// flag names a forwarding flag by the alias of its interface, which is unique and survives a restart of the
// host; an index does not.
type flag struct {
	Interface string           `json:"interface"`
	Family    hostroute.Family `json:"family"`
}

// same reports whether both intend the same routes and flags.
func (w *intent) same(o *intent) bool {
	return w != nil && slices.Equal(w.routes, o.routes) && slices.Equal(w.forwarding, o.forwarding)
}

func (w *intent) problem(format string, args ...any) {
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

// The sizes that HNS assumes in an overlay network, in bytes: those of packets of pods, and the VXLAN
// header.
const (
	overlayMTU    = 1450
	vxlanOverhead = 50
)

// intent computes the intended routes and flags from the interfaces of the host and the last State.
func (f *HostFabric) intent(have *present) *intent {
	w := &intent{owners: make(map[netip.Prefix]string)}
	gateways := have.interfacesOf(f.cfg.Gateways)
	w.uplinks = slices.DeleteFunc(have.interfacesOf(f.input.Self.Addresses), func(i hostroute.Interface) bool {
		return slices.ContainsFunc(gateways, func(g hostroute.Interface) bool { return g.Index == i.Index })
	})
	if !f.cfg.Overlay && f.cfg.Mode == fabric.None {
		return w
	}
	if len(w.uplinks) == 0 {
		w.problem("no interface of this host has an address of its Node object (%v): check Get-NetIPAddress and the node's status.addresses", f.input.Self.Addresses)
	}
	if f.cfg.Overlay {
		for _, i := range w.uplinks {
			if i.MTU < overlayMTU+vxlanOverhead {
				w.problem(fabric.Warning+"MTU %d of interface %q is too small: HNS gives pods of overlay networks %d bytes and adds %d of VXLAN: set it to %d or more (Set-NetIPInterface -NlMtuBytes)",
					i.MTU, i.Name, overlayMTU, vxlanOverhead, overlayMTU+vxlanOverhead)
			}
		}
		return w
	}
	for _, g := range f.cfg.Gateways {
		if !slices.ContainsFunc(gateways, func(i hostroute.Interface) bool { return i.Has(g) }) {
			w.problem("no interface of this host has %s, the next hop of its pods: wait until HNS has attached the host to the network; if this persists, restart the hns service", g)
		}
	}
	f.addRoutes(w)
	w.addForwarding(f.cfg.PodCIDRs, gateways)
	return w
}

// addRoutes adds the routes to pods of other nodes, and the problems of those that cannot be reached.
func (f *HostFabric) addRoutes(w *intent) {
	self := f.input.Self
	for _, i := range w.uplinks {
		self.Underlay = append(self.Underlay, i.Addresses...)
	}
	cfg := fabric.Defaults()
	cfg.Mode, cfg.Masquerade = f.cfg.Mode, false
	if len(self.Underlay) == 0 {
		return // reported; a plan would call every node unreachable
	}
	plan := fabric.Make(cfg, self, f.input.Peers)
	w.problems = append(w.problems, plan.Problems...)
	for _, h := range plan.Hops {
		if h.Via != fabric.Routes {
			w.problem("pod range %s of node %s cannot be reached: %s is on no segment of this node, and l2bridge networks have no tunnels: "+
				"if routers of the network know the range, set --fabric=routes, otherwise use --hns-mode=overlay", h.Prefix, h.Node, h.Underlay)
			continue
		}
		w.owners[h.Prefix] = h.Node
		w.routes = append(w.routes, hostroute.Route{Destination: h.Prefix, NextHop: h.Underlay,
			Interface: nearest(w.uplinks, h.Underlay), Metric: Metric, Protocol: hostroute.NetMgmt})
	}
}

// nearest returns the index of the interface whose segment contains the address, the smallest segment
// first. The plan makes sure that there is one.
func nearest(uplinks []hostroute.Interface, a netip.Addr) (index uint32) {
	bits := -1
	for _, i := range uplinks {
		for _, p := range i.Addresses {
			if p.Masked().Contains(a) && p.Bits() > bits {
				index, bits = i.Index, p.Bits()
			}
		}
	}
	return index
}

// addForwarding adds the flags of the interfaces that pod traffic crosses, for the families of pods.
func (w *intent) addForwarding(podCIDRs []netip.Prefix, gateways []hostroute.Interface) {
	for _, p := range podCIDRs {
		family := hostroute.FamilyOf(p.Addr())
		for _, i := range slices.Concat(w.uplinks, gateways) {
			k := flag{Interface: i.Name, Family: family}
			if slices.ContainsFunc(i.Addresses, func(a netip.Prefix) bool { return hostroute.FamilyOf(a.Addr()) == family }) && !slices.Contains(w.forwarding, k) {
				w.forwarding = append(w.forwarding, k)
			}
		}
	}
}
