// SPDX-License-Identifier: Apache-2.0

package hnstest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// Networks implements Client.
func (f *Fake) Networks(context.Context) (list []hns.Network, err error) {
	err = f.do("Networks", "", nil, func() error {
		for i, n := range f.networks {
			if sameType(n.Type, hns.Overlay) {
				f.ripen(n, i)
			}
			list = append(list, f.showNetwork(n))
		}
		f.late.sets = nil
		return nil
	})
	return list, err
}

// ripen adds members that HNS knows only after it has bound the adapter.
func (f *Fake) ripen(n *hns.Network, i int) {
	if slices.ContainsFunc(n.Policies, func(p hns.Policy) bool { return p.Is(hns.TypeDrMacAddress) }) {
		return
	}
	n.Policies = slices.DeleteFunc(n.Policies, func(p hns.Policy) bool { return p.Is(hns.TypeProviderAddress) })
	if f.Late > 0 {
		f.Late--
		n.Policies = append(n.Policies, hns.MakePolicy(hns.TypeProviderAddress, hns.ProviderAddress{ProviderAddress: f.early}))
		return
	}
	address, mac := f.ManagementIP, f.ManagementMAC
	if address == "" {
		address = fmt.Sprintf("192.0.2.%d", 13+i)
	}
	if mac == "" {
		mac = fmt.Sprintf("00-15-5D-7A-11-%02X", 2+i)
	}
	n.Policies = append(n.Policies, hns.MakePolicy(hns.TypeProviderAddress, hns.ProviderAddress{ProviderAddress: address}),
		hns.MakePolicy(hns.TypeDrMacAddress, hns.DrMacAddress{Address: mac}))
}

// inventedIpam returns the range of a NAT network without one.
func inventedIpam() hns.Ipam {
	return hns.Ipam{Type: "Static", Subnets: []hns.Subnet{{IPAddressPrefix: "172.29.0.0/20",
		Routes: []hns.Route{{NextHop: "172.29.0.1", DestinationPrefix: "0.0.0.0/0"}}}}}
}

// sameType compares types without case, as HNS does.
func sameType(a, b hns.NetworkType) bool { return strings.EqualFold(string(a), string(b)) }

// CreateNetwork implements Client.
func (f *Fake) CreateNetwork(_ context.Context, n hns.Network) (made hns.Network, err error) {
	const op = "CreateNetwork"
	err = f.do(op, n.Name, n, func() error {
		stored := cloneNetwork(&n)
		if sameType(stored.Type, NAT) && len(stored.Subnets()) == 0 {
			stored.Ipams = []hns.Ipam{inventedIpam()}
		}
		if err := f.checkNetwork(op, stored); err != nil {
			return err
		}
		id, err := f.newID(op, n.ID)
		if err != nil {
			return err
		}
		stored.ID = id
		f.networks = append(f.networks, &stored)
		made = f.showNetwork(&stored)
		return nil
	})
	return made, err
}

func (f *Fake) checkNetwork(op string, n hns.Network) error {
	if !f.version.Supports(hns.Schema2API) {
		return hns.NewError(op, hns.CodeNotImplemented, "schema 2 needs hns 9.2")
	}
	if find(f.networks, func(o *hns.Network) bool { return strings.EqualFold(o.Name, n.Name) }) != nil {
		return hns.NewError(op, hns.CodeNetworkExists, "A network with this name already exists.")
	}
	if f.quirks.NoVFP && sameType(n.Type, hns.Overlay) {
		return hns.NewError(op, hns.CodeInvalidPolicy, "A policy is invalid.")
	}
	if !slices.ContainsFunc([]hns.NetworkType{hns.L2Bridge, hns.Overlay, NAT, ICS, Transparent, L2Tunnel, Private, Internal},
		func(t hns.NetworkType) bool { return sameType(n.Type, t) }) {
		return hns.NewError(op, CodeInvalidNetworkType, fmt.Sprintf("network type %q", n.Type))
	}
	for _, p := range n.Policies {
		var adapter hns.NetAdapterName
		if p.Is(hns.TypeNetAdapterName) && (p.Decode(&adapter) != nil || !slices.Contains(f.Adapters, adapter.NetworkAdapterName)) {
			return hns.NewError(op, hns.CodeAdapterNotFound, "An adapter was not found.")
		}
		if p.Is(hns.TypeSet) || p.Is(hns.TypeRemoteSubnetRoute) {
			return hns.NewError(op, hns.CodeInvalidPolicyType, p.Type+" at creation")
		}
	}
	if len(n.Subnets()) == 0 && (sameType(n.Type, hns.L2Bridge) || sameType(n.Type, hns.Overlay)) {
		return hns.NewError(op, CodeInvalidNetwork, "no subnet")
	}
	for _, s := range n.Subnets() {
		if err := f.checkSubnet(op, n.Type, s); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fake) checkSubnet(op string, kind hns.NetworkType, s hns.Subnet) error {
	prefix, err := netip.ParsePrefix(s.IPAddressPrefix)
	if err != nil || prefix != prefix.Masked() {
		return hns.NewError(op, CodeInvalidPrefix, fmt.Sprintf("subnet %q", s.IPAddressPrefix))
	}
	if prefix.Addr().Is6() && (sameType(kind, hns.Overlay) || !f.version.Supports(hns.DualStack)) {
		return hns.NewError(op, CodeInvalidPrefix, "IPv6 is not supported here")
	}
	// hcsshim refuses subnets without a default route before HNS gets them.
	def := slices.IndexFunc(s.Routes, func(r hns.Route) bool { return r.DestinationPrefix == "0.0.0.0/0" || r.DestinationPrefix == "::/0" })
	if def < 0 {
		return hns.NewError(op, CodeInvalidNetwork, "subnet without default route")
	}
	if gateway, err := netip.ParseAddr(s.Routes[def].NextHop); err != nil || !prefix.Contains(gateway) {
		return hns.NewError(op, CodeInvalidNetwork, fmt.Sprintf("gateway %q is not in the subnet", s.Routes[def].NextHop))
	}
	if !sameType(kind, hns.Overlay) {
		return nil
	}
	var id hns.IsolationID
	vsid := slices.IndexFunc(s.Policies, func(p hns.Policy) bool { return p.Is(hns.TypeVSID) })
	if vsid < 0 || s.Policies[vsid].Decode(&id) != nil || id.IsolationID < 4096 || id.IsolationID > 1<<24-1 {
		return hns.NewError(op, hns.CodeInvalidPolicy, "overlay subnets need a VSID policy of 4096 or more")
	}
	return nil
}

// DeleteNetwork implements Client.
func (f *Fake) DeleteNetwork(_ context.Context, id string) error {
	const op = "DeleteNetwork"
	return f.do(op, id, nil, func() error {
		n := f.network(id)
		if n == nil {
			return hns.NewError(op, hns.CodeNetworkNotFound, "The network was not found.")
		}
		f.dropNetwork(n)
		return nil
	})
}

func (f *Fake) dropNetwork(n *hns.Network) {
	for _, e := range slices.Clone(f.endpoints) {
		if hns.SameID(e.HostComputeNetwork, n.ID) {
			f.drop(e)
		}
	}
	f.networks = slices.DeleteFunc(f.networks, func(o *hns.Network) bool { return o == n })
}

// ModifyNetwork implements Client.
func (f *Fake) ModifyNetwork(_ context.Context, id string, r hns.RequestType, policies ...hns.Policy) (changed hns.Network, err error) {
	const op = "ModifyNetwork"
	err = f.do(op, id, map[string]any{"RequestType": r, "Policies": policies}, func() error {
		n := f.network(id)
		if n == nil {
			return hns.NewError(op, hns.CodeNetworkNotFound, "The network was not found.")
		}
		next := cloneNetwork(n)
		for _, p := range policies {
			if err := f.changeNetwork(op, &next, r, p); err != nil {
				return err
			}
		}
		if err := f.delaySets(n); err != nil {
			return hns.NewError(op, hns.CodeInvalidJSON, err.Error())
		}
		*n = next
		changed = f.showNetwork(&next)
		return nil
	})
	f.meet()
	return changed, err
}

func (f *Fake) changeNetwork(op string, n *hns.Network, r hns.RequestType, p hns.Policy) error {
	switch {
	case p.Is(hns.TypeSet):
		return f.changeSet(op, n, r, p)
	case p.Is(hns.TypeNetworkACL) && Since(f.version, NetworkACLs):
	case p.Is(hns.TypeRemoteSubnetRoute):
		if err := checkRemoteRoute(p); err != nil {
			return hns.NewError(op, hns.CodeInvalidPolicy, err.Error())
		}
	case p.Is(hns.TypeHostRoute):
	default:
		return hns.NewError(op, hns.CodeInvalidPolicyType, fmt.Sprintf("policy type %q", p.Type))
	}
	switch {
	case f.bug == BugAddLost && r == hns.Add, f.bug == BugRemoveIgnored && r == hns.Remove:
		return nil
	}
	switch r {
	case hns.Add:
		n.Policies = append(n.Policies, p)
	case hns.Remove:
		i := slices.IndexFunc(n.Policies, func(o hns.Policy) bool { return o.Is(p.Type) && f.same(o, p) })
		if i < 0 {
			return hns.NewError(op, hns.CodePolicyNotFound, "The policy was not found.")
		}
		n.Policies = slices.Delete(n.Policies, i, i+1)
	default:
		return hns.NewError(op, hns.CodeRequestUnsupported, fmt.Sprintf("request type %q for %s", r, p.Type))
	}
	return nil
}

// checkRemoteRoute returns an error for a route to another node that HNS refuses.
func checkRemoteRoute(p hns.Policy) error {
	var r hns.RemoteSubnetRoute
	if err := p.Decode(&r); err != nil {
		return err
	}
	if prefix, err := netip.ParsePrefix(r.DestinationPrefix); err != nil || prefix != prefix.Masked() {
		return fmt.Errorf("destination prefix %q", r.DestinationPrefix)
	}
	if _, err := netip.ParseAddr(r.ProviderAddress); err != nil {
		return fmt.Errorf("provider address %q", r.ProviderAddress)
	}
	if _, err := net.ParseMAC(r.DrMacAddress); err != nil {
		return fmt.Errorf("distributed router mac address %q", r.DrMacAddress)
	}
	return nil
}

// changeSet adds, replaces or removes one set of addresses.
func (f *Fake) changeSet(op string, n *hns.Network, r hns.RequestType, p hns.Policy) error {
	if !f.version.Supports(hns.Sets) {
		return hns.NewError(op, hns.CodeInvalidPolicyType, "sets need hns 13.0")
	}
	var set hns.SetPolicy
	if err := p.Decode(&set); err != nil {
		return hns.NewError(op, hns.CodeInvalidJSON, err.Error())
	}
	list, err := hns.ParseAddresses(set.Values)
	if err != nil || set.ID == "" || len(list.Sets) > 0 || !list.Canonical || !strings.EqualFold(set.PolicyType, hns.IPSet) {
		return hns.NewError(op, hns.CodeInvalidPolicy, fmt.Sprintf("set %q is malformed", set.ID))
	}
	i := slices.IndexFunc(n.Policies, func(o hns.Policy) bool {
		var other hns.SetPolicy
		return o.Is(hns.TypeSet) && o.Decode(&other) == nil && other.ID == set.ID
	})
	switch {
	case r == hns.Add && i >= 0:
		return hns.NewError(op, hns.CodePolicyExists, fmt.Sprintf("set %q exists", set.ID))
	case r == hns.Add:
		n.Policies = append(n.Policies, p)
	case r == hns.Update && f.bug == BugSetKept:
	case r == hns.Update && i >= 0:
		n.Policies[i] = p
	case r == hns.Update:
		// An Update of an unknown set has no effect and no error.
	case r == hns.Remove && (i < 0 || !f.same(n.Policies[i], p)):
		return hns.NewError(op, hns.CodePolicyNotFound, "The policy was not found.")
	case r == hns.Remove && f.used(n.ID, set.ID):
		return hns.NewError(op, CodeHasReferences, fmt.Sprintf("set %q is in use", set.ID))
	case r == hns.Remove:
		n.Policies = slices.Delete(n.Policies, i, i+1)
	default:
		return hns.NewError(op, hns.CodeRequestUnsupported, fmt.Sprintf("request type %q", r))
	}
	return nil
}

// used reports whether an ACL on the network refers to a set.
func (f *Fake) used(network, set string) bool {
	for _, e := range f.endpoints {
		if !hns.SameID(e.HostComputeNetwork, network) {
			continue
		}
		acls, _ := e.ACLs()
		for _, a := range acls {
			for _, text := range []string{a.LocalAddresses, a.RemoteAddresses} {
				if list, err := hns.ParseAddresses(text); err == nil && slices.Contains(list.Sets, set) {
					return true
				}
			}
		}
	}
	return false
}
