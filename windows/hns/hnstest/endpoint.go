// SPDX-License-Identifier: Apache-2.0

package hnstest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/windows/hns"
	"go4.org/netipx"
)

// Endpoints implements Client.
func (f *Fake) Endpoints(_ context.Context, network string) (list []hns.Endpoint, err error) {
	err = f.do("Endpoints", network, nil, func() error {
		if f.network(network) == nil {
			return hns.NewError("Endpoints", hns.CodeNetworkNotFound, "The network was not found.")
		}
		for _, e := range f.endpoints {
			if hns.SameID(e.HostComputeNetwork, network) {
				list = append(list, f.showEndpoint(e))
			}
		}
		f.late.lists = nil
		return nil
	})
	return list, err
}

// CreateEndpoint implements Client.
func (f *Fake) CreateEndpoint(_ context.Context, e hns.Endpoint) (made hns.Endpoint, err error) {
	const op = "CreateEndpoint"
	err = f.do(op, e.Name, e, func() error {
		n := f.network(e.HostComputeNetwork)
		if n == nil {
			return hns.NewError(op, hns.CodeNetworkNotFound, "The network was not found.")
		}
		if e.HostComputeNamespace != "" {
			return hns.NewError(op, CodeInvalidEndpoint, "an endpoint cannot be made in a namespace")
		}
		stored := cloneEndpoint(&e)
		if err := checkDNS(op, stored.DNS); err != nil {
			return err
		}
		if err := f.address(op, n, &stored); err != nil {
			return err
		}
		if err := f.checkPolicies(op, n, stored.Policies); err != nil {
			return err
		}
		if err := f.checkPorts(op, nil, stored.Policies); err != nil {
			return err
		}
		id, err := f.newID(op, e.ID)
		if err != nil {
			return err
		}
		stored.ID = id
		if f.quirks.IPv4Only {
			stored.IPConfigurations = slices.DeleteFunc(stored.IPConfigurations, func(c hns.IPConfig) bool { return strings.Contains(c.IPAddress, ":") })
		}
		if f.quirks.OpenEndpoints {
			stored.Policies = slices.DeleteFunc(stored.Policies, func(p hns.Policy) bool { return p.Is(hns.TypeACL) })
		}
		f.complete(n, &stored)
		f.endpoints = append(f.endpoints, &stored)
		f.stats[stored.ID] = &hns.Stats{}
		made = f.showEndpoint(&stored)
		return nil
	})
	return made, err
}

// checkDNS refuses servers that are not addresses, and lists that schema 1 could not hold, whose separator
// is a comma. It is not known whether HNS refuses them; a client must not depend on that.
func checkDNS(op string, d hns.DNS) error {
	for _, s := range d.ServerList {
		if _, err := netip.ParseAddr(s); err != nil {
			return hns.NewError(op, hns.CodeInvalidArgument, fmt.Sprintf("DNS server %q", s))
		}
	}
	for _, s := range slices.Concat(d.Search, d.Options, []string{d.Domain}) {
		if strings.ContainsAny(s, ", ") {
			return hns.NewError(op, hns.CodeInvalidArgument, fmt.Sprintf("DNS setting %q", s))
		}
	}
	return nil
}

// address checks the requested addresses, or allocates a free one.
func (f *Fake) address(op string, n *hns.Network, e *hns.Endpoint) error {
	if len(n.Subnets()) == 0 || f.bug == BugNoAddress {
		return nil // a DHCP server assigns addresses
	}
	if len(e.IPConfigurations) == 0 {
		prefix := netip.MustParsePrefix(n.Subnets()[0].IPAddressPrefix)
		for a := prefix.Addr().Next(); prefix.Contains(a); a = a.Next() {
			if _, code := f.place(n, a, false); code == 0 {
				e.IPConfigurations = []hns.IPConfig{{IPAddress: a.String()}}
				break
			}
		}
		if len(e.IPConfigurations) == 0 {
			return hns.NewError(op, CodeAddressInvalid, "no address is free")
		}
	}
	for i, c := range e.IPConfigurations {
		a, err := netip.ParseAddr(c.IPAddress)
		if err != nil {
			return hns.NewError(op, CodeAddressInvalid, fmt.Sprintf("address %q", c.IPAddress))
		}
		bits, code := f.place(n, a, e.Remote())
		if code != 0 {
			return hns.NewError(op, code, fmt.Sprintf("address %s", a))
		}
		e.IPConfigurations[i].PrefixLength = bits
	}
	return nil
}

// place finds the subnet of an address; the code is the reason why the address cannot be used. Remote
// endpoints may be outside the subnets, but occupy their address as local ones do.
func (f *Fake) place(n *hns.Network, a netip.Addr, remote bool) (bits uint8, code uint32) {
	for _, e := range f.endpoints {
		if f.bug == BugAddressTwice || f.quirks.RemotesApart && e.Remote() != remote {
			continue
		}
		if hns.SameID(e.HostComputeNetwork, n.ID) && slices.ContainsFunc(e.IPConfigurations, func(c hns.IPConfig) bool { return c.IPAddress == a.String() }) {
			return 0, hns.CodeObjectExists
		}
	}
	if remote {
		return uint8(a.BitLen()), 0
	}
	for _, s := range n.Subnets() {
		prefix := netip.MustParsePrefix(s.IPAddressPrefix)
		if !prefix.Contains(a) {
			continue
		}
		gateway := slices.ContainsFunc(s.Routes, func(r hns.Route) bool { return r.NextHop == a.String() })
		if gateway || a == prefix.Addr() || a.Is4() && a == netipx.PrefixLastIP(prefix) {
			return 0, CodeAddressInvalid
		}
		return uint8(prefix.Bits()), 0
	}
	return 0, CodeAddressInvalid
}

// complete adds the members that HNS adds to a new endpoint.
func (f *Fake) complete(n *hns.Network, e *hns.Endpoint) {
	e.HostComputeNetwork = n.ID
	switch {
	case f.bug == BugDNSLost:
		e.DNS = hns.DNS{}
	case e.DNS.IsZero() && !e.Remote():
		e.DNS = f.HostDNS
	}
	if e.Name == "" {
		e.Name = "Ethernet"
	}
	if len(e.Routes) == 0 && len(n.Subnets()) > 0 && !e.Remote() {
		e.Routes = slices.Clone(n.Subnets()[0].Routes)
	}
	if e.MACAddress == "" {
		f.macs++
		e.MACAddress = fmt.Sprintf("00-15-5D-10-%02X-%02X", f.macs>>8&0xFF, f.macs&0xFF)
		if f.bug == BugMAC {
			e.MACAddress = "zz"
		}
	}
	if sameType(n.Type, hns.L2Bridge) {
		e.Policies = append(e.Policies, hns.MakePolicy(hns.TypeL2Driver, struct{}{}))
	}
	normalise(e.Policies)
}

// normalise rewrites ACLs as HNS returns them: with zero values for missing members.
func normalise(policies []hns.Policy) {
	for i, p := range policies {
		var a map[string]any
		if !p.Is(hns.TypeACL) || json.Unmarshal(p.Settings, &a) != nil {
			continue
		}
		for member, zero := range map[string]any{"LocalAddresses": "", "ServiceName": "", "InternalPort": 0, "Scope": 0} {
			if _, ok := a[member]; !ok {
				a[member] = zero
			}
		}
		policies[i] = hns.MakePolicy(hns.TypeACL, a)
	}
}

// ModifyEndpoint implements Client.
func (f *Fake) ModifyEndpoint(_ context.Context, id string, r hns.RequestType, policies ...hns.Policy) (changed hns.Endpoint, err error) {
	const op = "ModifyEndpoint"
	err = f.do(op, id, map[string]any{"RequestType": r, "Policies": policies}, func() error {
		e := f.endpoint(id)
		if e == nil {
			return hns.NewError(op, hns.CodeEndpointNotFound, "The endpoint was not found.")
		}
		n := f.network(e.HostComputeNetwork)
		if err := f.checkPolicies(op, n, policies); err != nil {
			return err
		}
		next, err := f.merge(op, slices.Clone(e.Policies), r, slices.Clone(policies))
		if err == nil {
			err = f.checkPorts(op, e, next)
		}
		if err != nil {
			return err
		}
		f.delayList(e)
		if f.Gradual != nil && r == hns.Update && !f.gradually(id, next) {
			return hns.NewError(op, hns.CodeEndpointNotFound, "The endpoint was not found.")
		}
		e = f.endpoint(id)
		e.Policies = next
		changed = f.showEndpoint(e)
		return nil
	})
	return changed, err
}

// merge returns the policies of an endpoint after a modification.
func (f *Fake) merge(op string, have []hns.Policy, r hns.RequestType, request []hns.Policy) ([]hns.Policy, error) {
	normalise(request)
	switch r {
	case hns.Add:
		if f.bug == BugAddLost {
			return have, nil
		}
		return append(have, request...), nil
	case hns.Remove:
		if f.bug == BugRemoveIgnored {
			return have, nil
		}
		for _, p := range request {
			i := slices.IndexFunc(have, func(o hns.Policy) bool { return o.Is(p.Type) && f.same(o, p) })
			if i < 0 {
				return nil, hns.NewError(op, hns.CodePolicyNotFound, "The policy was not found.")
			}
			have = slices.Delete(have, i, i+1)
		}
		return have, nil
	case hns.Update:
		have = slices.DeleteFunc(have, func(o hns.Policy) bool {
			return f.bug != BugUpdateAppends &&
				(f.UpdateReplacesAll || slices.ContainsFunc(request, func(p hns.Policy) bool { return o.Is(p.Type) }))
		})
		return append(have, request...), nil
	}
	return nil, hns.NewError(op, hns.CodeRequestUnsupported, fmt.Sprintf("request type %q", r))
}

// DeleteEndpoint implements Client.
func (f *Fake) DeleteEndpoint(_ context.Context, id string) error {
	const op = "DeleteEndpoint"
	return f.do(op, id, nil, func() error {
		e := f.endpoint(id)
		if e == nil {
			return hns.NewError(op, hns.CodeEndpointNotFound, "The endpoint was not found.")
		}
		if f.bug != BugDeleteKeeps {
			f.drop(e)
		}
		return nil
	})
}

func (f *Fake) drop(e *hns.Endpoint) {
	f.leave(e)
	f.endpoints = slices.DeleteFunc(f.endpoints, func(o *hns.Endpoint) bool { return o == e })
	delete(f.stats, e.ID)
	delete(f.states, e.ID)
	delete(f.left, e.ID)
}
