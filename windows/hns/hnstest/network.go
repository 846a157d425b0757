// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Networks implements Client.
func (f *Fake) Networks(context.Context) (list []Network, err error) {
	err = f.do("Networks", "", nil, func() error {
		for i, n := range f.networks {
			if n.Type.is(Overlay) {
				f.ripen(n, i)
			}
			list = append(list, n.clone())
		}
		return nil
	})
	return list, err
}

// ripen adds members that HNS knows only after it has bound the adapter.
func (f *Fake) ripen(n *Network, i int) {
	if slices.ContainsFunc(n.Policies, func(p Policy) bool { return p.Is(TypeDrMacAddress) }) {
		return
	}
	n.Policies = slices.DeleteFunc(n.Policies, func(p Policy) bool { return p.Is(TypeProviderAddress) })
	if f.Late > 0 {
		f.Late--
		n.Policies = append(n.Policies, MakePolicy(TypeProviderAddress, ProviderAddress{f.early}))
		return
	}
	address, mac := f.ManagementIP, f.ManagementMAC
	if address == "" {
		address = fmt.Sprintf("192.0.2.%d", 13+i)
	}
	if mac == "" {
		mac = fmt.Sprintf("00-15-5D-7A-11-%02X", 2+i)
	}
	n.Policies = append(n.Policies, MakePolicy(TypeProviderAddress, ProviderAddress{address}), MakePolicy(TypeDrMacAddress, DrMacAddress{mac}))
}

// inventedIpam returns the range of a NAT network without one.
func inventedIpam() Ipam {
	return Ipam{Type: "Static", Subnets: []Subnet{{IPAddressPrefix: "172.29.0.0/20",
		Routes: []Route{{NextHop: "172.29.0.1", DestinationPrefix: "0.0.0.0/0"}}}}}
}

// is compares types without case, as HNS does.
func (t NetworkType) is(other NetworkType) bool { return strings.EqualFold(string(t), string(other)) }

// CreateNetwork implements Client.
func (f *Fake) CreateNetwork(_ context.Context, n Network) (made Network, err error) {
	const op = "CreateNetwork"
	err = f.do(op, n.Name, n, func() error {
		stored := n.clone()
		if stored.Type.is(NAT) && len(stored.Subnets()) == 0 {
			stored.Ipams = []Ipam{inventedIpam()}
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
		made = stored.clone()
		return nil
	})
	return made, err
}

func (f *Fake) checkNetwork(op string, n Network) error {
	if !f.version.Supports(Schema2API) {
		return NewError(op, CodeNotImplemented, "schema 2 needs hns 9.2")
	}
	if find(f.networks, func(o *Network) bool { return strings.EqualFold(o.Name, n.Name) }) != nil {
		return NewError(op, CodeNetworkExists, "A network with this name already exists.")
	}
	if f.quirks.NoVFP && n.Type.is(Overlay) {
		return NewError(op, CodeInvalidPolicy, "A policy is invalid.")
	}
	if !slices.ContainsFunc([]NetworkType{L2Bridge, Overlay, NAT, ICS, Transparent, L2Tunnel, Private, Internal}, n.Type.is) {
		return NewError(op, CodeInvalidNetworkType, fmt.Sprintf("network type %q", n.Type))
	}
	for _, p := range n.Policies {
		var adapter NetAdapterName
		if p.Is(TypeNetAdapterName) && (p.Decode(&adapter) != nil || !slices.Contains(f.Adapters, adapter.NetworkAdapterName)) {
			return NewError(op, CodeAdapterNotFound, "An adapter was not found.")
		}
		if p.Is(TypeSet) || p.Is(TypeRemoteSubnetRoute) {
			return NewError(op, CodeInvalidPolicyType, p.Type+" at creation")
		}
	}
	if len(n.Subnets()) == 0 && (n.Type.is(L2Bridge) || n.Type.is(Overlay)) {
		return NewError(op, CodeInvalidNetwork, "no subnet")
	}
	for _, s := range n.Subnets() {
		if err := f.checkSubnet(op, n.Type, s); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fake) checkSubnet(op string, kind NetworkType, s Subnet) error {
	prefix, err := netip.ParsePrefix(s.IPAddressPrefix)
	if err != nil || prefix != prefix.Masked() {
		return NewError(op, CodeInvalidPrefix, fmt.Sprintf("subnet %q", s.IPAddressPrefix))
	}
	if prefix.Addr().Is6() && (kind.is(Overlay) || !f.version.Supports(DualStack)) {
		return NewError(op, CodeInvalidPrefix, "IPv6 is not supported here")
	}
	// hcsshim refuses subnets without a default route before HNS gets them.
	def := slices.IndexFunc(s.Routes, func(r Route) bool { return r.DestinationPrefix == "0.0.0.0/0" || r.DestinationPrefix == "::/0" })
	if def < 0 {
		return NewError(op, CodeInvalidNetwork, "subnet without default route")
	}
	if gateway, err := netip.ParseAddr(s.Routes[def].NextHop); err != nil || !prefix.Contains(gateway) {
		return NewError(op, CodeInvalidNetwork, fmt.Sprintf("gateway %q is not in the subnet", s.Routes[def].NextHop))
	}
	if !kind.is(Overlay) {
		return nil
	}
	var id IsolationID
	vsid := slices.IndexFunc(s.Policies, func(p Policy) bool { return p.Is(TypeVSID) })
	if vsid < 0 || s.Policies[vsid].Decode(&id) != nil || id.IsolationID < 4096 || id.IsolationID > 1<<24-1 {
		return NewError(op, CodeInvalidPolicy, "overlay subnets need a VSID policy of 4096 or more")
	}
	return nil
}

// DeleteNetwork implements Client.
func (f *Fake) DeleteNetwork(_ context.Context, id string) error {
	const op = "DeleteNetwork"
	return f.do(op, id, nil, func() error {
		n := f.network(id)
		if n == nil {
			return NewError(op, CodeNetworkNotFound, "The network was not found.")
		}
		f.dropNetwork(n)
		return nil
	})
}

func (f *Fake) dropNetwork(n *Network) {
	for _, e := range slices.Clone(f.endpoints) {
		if SameID(e.HostComputeNetwork, n.ID) {
			f.drop(e)
		}
	}
	f.networks = slices.DeleteFunc(f.networks, func(o *Network) bool { return o == n })
}

// ModifyNetwork implements Client.
func (f *Fake) ModifyNetwork(_ context.Context, id string, r RequestType, policies ...Policy) (changed Network, err error) {
	const op = "ModifyNetwork"
	err = f.do(op, id, map[string]any{"RequestType": r, "Policies": policies}, func() error {
		n := f.network(id)
		if n == nil {
			return NewError(op, CodeNetworkNotFound, "The network was not found.")
		}
		next := n.clone()
		for _, p := range policies {
			if err := f.changeNetwork(op, &next, r, p); err != nil {
				return err
			}
		}
		*n = next
		changed = next.clone()
		return nil
	})
	return changed, err
}

func (f *Fake) changeNetwork(op string, n *Network, r RequestType, p Policy) error {
	switch {
	case p.Is(TypeSet):
		return f.changeSet(op, n, r, p)
	case p.Is(TypeNetworkACL) && f.version.Supports(NetworkACLs):
	case p.Is(TypeRemoteSubnetRoute):
		if err := checkRemoteRoute(p); err != nil {
			return NewError(op, CodeInvalidPolicy, err.Error())
		}
	case p.Is(TypeHostRoute):
	default:
		return NewError(op, CodeInvalidPolicyType, fmt.Sprintf("policy type %q", p.Type))
	}
	switch {
	case f.bug == BugAddLost && r == Add, f.bug == BugRemoveIgnored && r == Remove:
		return nil
	}
	switch r {
	case Add:
		n.Policies = append(n.Policies, p)
	case Remove:
		i := slices.IndexFunc(n.Policies, func(o Policy) bool { return o.Is(p.Type) && sameJSON(o.Settings, p.Settings) })
		if i < 0 {
			return NewError(op, CodePolicyNotFound, "The policy was not found.")
		}
		n.Policies = slices.Delete(n.Policies, i, i+1)
	default:
		return NewError(op, CodeRequestUnsupported, fmt.Sprintf("request type %q for %s", r, p.Type))
	}
	return nil
}

// checkRemoteRoute returns an error for a route to another node that HNS refuses.
func checkRemoteRoute(p Policy) error {
	var r RemoteSubnetRoute
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
func (f *Fake) changeSet(op string, n *Network, r RequestType, p Policy) error {
	if !f.version.Supports(Sets) {
		return NewError(op, CodeInvalidPolicyType, "sets need hns 13.0")
	}
	var set SetPolicy
	if err := p.Decode(&set); err != nil {
		return NewError(op, CodeInvalidJSON, err.Error())
	}
	list, err := ParseAddresses(set.Values)
	if err != nil || set.ID == "" || len(list.Sets) > 0 || !list.Canonical || !strings.EqualFold(set.PolicyType, IPSet) {
		return NewError(op, CodeInvalidPolicy, fmt.Sprintf("set %q is malformed", set.ID))
	}
	i := slices.IndexFunc(n.Policies, func(o Policy) bool {
		var other SetPolicy
		return o.Is(TypeSet) && o.Decode(&other) == nil && other.ID == set.ID
	})
	switch {
	case r == Add && i >= 0:
		return NewError(op, CodePolicyExists, fmt.Sprintf("set %q exists", set.ID))
	case r == Add:
		n.Policies = append(n.Policies, p)
	case r == Update && f.bug == BugSetKept:
	case r == Update && i >= 0:
		n.Policies[i] = p
	case r == Update:
		// An Update of an unknown set has no effect and no error.
	case r == Remove && (i < 0 || !sameJSON(n.Policies[i].Settings, p.Settings)):
		return NewError(op, CodePolicyNotFound, "The policy was not found.")
	case r == Remove && f.used(n.ID, set.ID):
		return NewError(op, CodeHasReferences, fmt.Sprintf("set %q is in use", set.ID))
	case r == Remove:
		n.Policies = slices.Delete(n.Policies, i, i+1)
	default:
		return NewError(op, CodeRequestUnsupported, fmt.Sprintf("request type %q", r))
	}
	return nil
}

// used reports whether an ACL on the network refers to a set.
func (f *Fake) used(network, set string) bool {
	for _, e := range f.endpoints {
		if !SameID(e.HostComputeNetwork, network) {
			continue
		}
		acls, _ := e.ACLs()
		for _, a := range acls {
			for _, text := range []string{a.LocalAddresses, a.RemoteAddresses} {
				if list, err := ParseAddresses(text); err == nil && slices.Contains(list.Sets, set) {
					return true
				}
			}
		}
	}
	return false
}
