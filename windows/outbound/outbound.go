// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"net/netip"

	"go4.org/netipx"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// Known reports whether a State locates the pods of the cluster. Without that, NAT would give pods
// of other nodes the address of the node, and policy there would take them for it.
func Known(f model.FabricState) bool { return len(f.PodCIDRs)+len(f.NodeAddresses)+len(f.Routes) > 0 }

// Exceptions returns the ranges of the cluster: pods of all nodes, services, and nodes that see the own
// addresses of pods. In an overlay these are the Linux nodes of Isthmus only, because hosts of other nodes
// are not in it. own are the pod ranges of this node. The result is sorted and minimal: adjacent ranges are one.
func Exceptions(f model.FabricState, own, services []netip.Prefix, overlay bool) []netip.Prefix {
	var b netipx.IPSetBuilder
	add := func(all []netip.Prefix) {
		for _, p := range all {
			b.AddPrefix(p.Masked())
		}
	}
	add(own)
	add(f.PodCIDRs)
	add(services)
	if !overlay {
		for _, a := range f.NodeAddresses {
			b.Add(a)
		}
	}
	for _, r := range f.Routes {
		add(r.PodCIDRs)
		if overlay && (r.OS == model.Windows || r.Foreign) {
			continue
		}
		for _, a := range r.Addresses {
			b.Add(a)
		}
	}
	return prefixes(&b)
}

// Services returns the ranges of Services: those of the administrator and those of a State, sorted and
// minimal.
func Services(f model.FabricState, configured []netip.Prefix) []netip.Prefix {
	var b netipx.IPSetBuilder
	for _, list := range [][]netip.Prefix{configured, f.ServiceCIDRs} {
		for _, p := range list {
			b.AddPrefix(p.Masked())
		}
	}
	return prefixes(&b)
}

// prefixes ignores ranges that are not valid, which convert has reported.
func prefixes(b *netipx.IPSetBuilder) []netip.Prefix {
	set, _ := b.IPSet()
	if set == nil {
		return nil
	}
	return set.Prefixes()
}

// Policies returns the OutBoundNAT policies of an endpoint: one for each family of its addresses.
func Policies(exceptions []netip.Prefix, ips []netip.Addr) []hns.Policy {
	var list []hns.Policy
	for _, v6 := range []bool{false, true} {
		has := false
		for _, a := range ips {
			has = has || a.Is6() == v6
		}
		if !has {
			continue
		}
		nat := hns.OutBoundNAT{}
		if v6 {
			nat.Flags = hns.NATIPv6
		}
		for _, p := range exceptions {
			if p.Addr().Is6() == v6 {
				nat.Exceptions = append(nat.Exceptions, p.String())
			}
		}
		list = append(list, hns.MakePolicy(hns.TypeOutBoundNAT, nat))
	}
	return list
}

// Covers reports whether an installed OutBoundNAT policy meets the intended one: it is of the same family and
// excepts at least the same destinations. A range that left the cluster may stay an exception, because a
// write may cut connections and the next node often gets the same range.
func Covers(have, want hns.Policy) bool {
	var h, w hns.OutBoundNAT
	if !have.Is(hns.TypeOutBoundNAT) || !want.Is(hns.TypeOutBoundNAT) || have.Decode(&h) != nil || want.Decode(&w) != nil {
		return false
	}
	if h.Flags&hns.NATIPv6 != w.Flags&hns.NATIPv6 || len(h.Destinations) > 0 {
		return false
	}
	var b netipx.IPSetBuilder
	for _, text := range h.Exceptions {
		list, _ := hns.ParseAddresses(text) // HNS may spell single addresses without their length
		for _, p := range list.Prefixes {
			b.AddPrefix(p)
		}
	}
	set, err := b.IPSet()
	if err != nil {
		return false
	}
	for _, text := range w.Exceptions {
		if p, err := netip.ParsePrefix(text); err != nil || !set.ContainsPrefix(p) {
			return false
		}
	}
	return true
}
