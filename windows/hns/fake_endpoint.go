// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// Endpoints implements Client.
func (f *Fake) Endpoints(_ context.Context, network string) (list []Endpoint, err error) {
	err = f.do("Endpoints", network, nil, func() error {
		if f.network(network) == nil {
			return NewError("Endpoints", CodeNetworkNotFound, "The network was not found.")
		}
		for _, e := range f.endpoints {
			if SameID(e.HostComputeNetwork, network) {
				list = append(list, e.clone())
			}
		}
		return nil
	})
	return list, err
}

// CreateEndpoint implements Client.
func (f *Fake) CreateEndpoint(_ context.Context, e Endpoint) (made Endpoint, err error) {
	const op = "CreateEndpoint"
	err = f.do(op, e.Name, e, func() error {
		n := f.network(e.HostComputeNetwork)
		if n == nil {
			return NewError(op, CodeNetworkNotFound, "The network was not found.")
		}
		if e.HostComputeNamespace != "" {
			return NewError(op, CodeInvalidEndpoint, "an endpoint cannot be made in a namespace")
		}
		stored := e.clone()
		if err := f.address(op, n, &stored); err != nil {
			return err
		}
		if err := f.checkPolicies(op, n, stored.Policies); err != nil {
			return err
		}
		f.complete(n, &stored)
		f.endpoints = append(f.endpoints, &stored)
		f.stats[stored.ID] = &Stats{}
		made = stored.clone()
		return nil
	})
	return made, err
}

// address checks the addresses that were asked for, or takes a free one.
func (f *Fake) address(op string, n *Network, e *Endpoint) error {
	if len(e.IPConfigurations) == 0 {
		prefix := netip.MustParsePrefix(n.Subnets()[0].IPAddressPrefix)
		for a := prefix.Addr().Next(); prefix.Contains(a); a = a.Next() {
			if _, code := f.place(n, a, false); code == 0 {
				e.IPConfigurations = []IPConfig{{IPAddress: a.String()}}
				break
			}
		}
	}
	for i, c := range e.IPConfigurations {
		a, err := netip.ParseAddr(c.IPAddress)
		if err != nil {
			return NewError(op, CodeAddressInvalid, fmt.Sprintf("address %q", c.IPAddress))
		}
		bits, code := f.place(n, a, e.Remote())
		if code != 0 {
			return NewError(op, code, fmt.Sprintf("address %s", a))
		}
		e.IPConfigurations[i].PrefixLength = bits
	}
	return nil
}

// place finds the subnet of an address; the code tells why it cannot be had.
// Remote endpoints may be outside the subnets, but take their address as local
// ones do.
func (f *Fake) place(n *Network, a netip.Addr, remote bool) (bits uint8, code uint32) {
	for _, e := range f.endpoints {
		if SameID(e.HostComputeNetwork, n.ID) && slices.ContainsFunc(e.IPConfigurations, func(c IPConfig) bool { return c.IPAddress == a.String() }) {
			return 0, CodeObjectExists
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
		gateway := slices.ContainsFunc(s.Routes, func(r Route) bool { return r.NextHop == a.String() })
		if gateway || a == prefix.Addr() || a.Is4() && a == LastAddr(prefix) {
			return 0, CodeAddressInvalid
		}
		return uint8(prefix.Bits()), 0
	}
	return 0, CodeAddressInvalid
}

// complete adds what HNS adds to a new endpoint.
func (f *Fake) complete(n *Network, e *Endpoint) {
	e.ID = f.guid()
	e.HostComputeNetwork = n.ID
	if e.Name == "" {
		e.Name = "Ethernet"
	}
	if e.MACAddress == "" {
		e.MACAddress = fmt.Sprintf("00-15-5D-10-%02X-%02X", f.sequence>>8&0xFF, f.sequence&0xFF)
	}
	if n.Type == L2Bridge {
		e.Policies = append(e.Policies, MakePolicy(TypeL2Driver, struct{}{}))
	}
	normalise(e.Policies)
}

// normalise rewrites ACLs as HNS answers them: with zero members that nobody
// asked for.
func normalise(policies []Policy) {
	for i, p := range policies {
		var a map[string]any
		if !p.Is(TypeACL) || json.Unmarshal(p.Settings, &a) != nil {
			continue
		}
		for _, member := range []string{"LocalAddresses", "ServiceName"} {
			if _, ok := a[member]; !ok {
				a[member] = ""
			}
		}
		a["InternalPort"], a["Scope"] = 0, 0
		policies[i] = MakePolicy(TypeACL, a)
	}
}

// ModifyEndpoint implements Client.
func (f *Fake) ModifyEndpoint(_ context.Context, id string, r RequestType, policies ...Policy) (changed Endpoint, err error) {
	const op = "ModifyEndpoint"
	err = f.do(op, id, map[string]any{"RequestType": r, "Policies": policies}, func() error {
		e := f.endpoint(id)
		if e == nil {
			return NewError(op, CodeEndpointNotFound, "The endpoint was not found.")
		}
		n := f.network(e.HostComputeNetwork)
		if err := f.checkPolicies(op, n, policies); err != nil {
			return err
		}
		next, err := f.merge(op, slices.Clone(e.Policies), r, slices.Clone(policies))
		if err != nil {
			return err
		}
		e.Policies = next
		changed = e.clone()
		return nil
	})
	return changed, err
}

// merge returns the policies of an endpoint after a modification.
func (f *Fake) merge(op string, have []Policy, r RequestType, request []Policy) ([]Policy, error) {
	normalise(request)
	switch r {
	case Add:
		return append(have, request...), nil
	case Remove:
		for _, p := range request {
			i := slices.IndexFunc(have, func(o Policy) bool { return o.Is(p.Type) && sameJSON(o.Settings, p.Settings) })
			if i < 0 {
				return nil, NewError(op, CodePolicyNotFound, "The policy was not found.")
			}
			have = slices.Delete(have, i, i+1)
		}
		return have, nil
	case Update:
		have = slices.DeleteFunc(have, func(o Policy) bool {
			return f.UpdateReplacesAll || slices.ContainsFunc(request, func(p Policy) bool { return o.Is(p.Type) })
		})
		return append(have, request...), nil
	}
	return nil, NewError(op, CodeRequestUnsupported, fmt.Sprintf("request type %q", r))
}

// DeleteEndpoint implements Client.
func (f *Fake) DeleteEndpoint(_ context.Context, id string) error {
	const op = "DeleteEndpoint"
	return f.do(op, id, nil, func() error {
		e := f.endpoint(id)
		if e == nil {
			return NewError(op, CodeEndpointNotFound, "The endpoint was not found.")
		}
		f.drop(e)
		return nil
	})
}

func (f *Fake) drop(e *Endpoint) {
	f.leave(e)
	f.endpoints = slices.DeleteFunc(f.endpoints, func(o *Endpoint) bool { return o == e })
	delete(f.stats, e.ID)
}

// checkPolicies refuses policies of an endpoint that HNS refuses.
func (f *Fake) checkPolicies(op string, n *Network, policies []Policy) error {
	sets, err := n.Sets()
	if err != nil {
		return NewError(op, CodeInvalidJSON, err.Error())
	}
	nat := map[uint32]int{}
	var acls []ACL
	for _, p := range policies {
		var err error
		switch {
		case p.Is(TypeACL):
			var a ACL
			err = p.Decode(&a)
			acls = append(acls, a)
		case p.Is(TypeOutBoundNAT):
			var o OutBoundNAT
			if err = p.Decode(&o); err == nil {
				err = f.checkPrefixes(o.Exceptions)
			}
			nat[o.Flags&NATIPv6]++
		case p.Is(TypeSDNRoute):
			var s SDNRoute
			if err = p.Decode(&s); err == nil {
				err = f.checkPrefixes([]string{s.DestinationPrefix})
			}
		case p.Is(TypeProviderAddress):
			var a ProviderAddress
			if err = p.Decode(&a); err == nil {
				_, err = netip.ParseAddr(a.ProviderAddress)
			}
		case p.Is(TypeL2Driver), p.Is(TypePortMapping):
		default:
			return NewError(op, CodeInvalidPolicyType, fmt.Sprintf("policy type %q", p.Type))
		}
		if err != nil {
			return NewError(op, CodeInvalidPolicy, err.Error())
		}
	}
	if nat[0] > 1 || nat[NATIPv6] > 1 {
		return NewError(op, CodeInvalidPolicy, "more than one OutBoundNAT of a family")
	}
	return f.checkACLs(op, acls, sets)
}

func (f *Fake) checkACLs(op string, acls []ACL, sets []SetPolicy) error {
	if _, err := ParseRules(acls, sets); err != nil {
		return NewError(op, CodeInvalidPolicy, err.Error())
	}
	for _, a := range acls {
		for _, text := range []string{a.LocalAddresses, a.RemoteAddresses} {
			list, _ := ParseAddresses(text)
			if f.version.Supports(CanonicalCIDRs) && !list.Canonical {
				return NewError(op, CodeInvalidPolicy, fmt.Sprintf("acl %q: prefix with host bits in %q", a.ID, text))
			}
			if len(list.Sets) > 0 && !f.version.Supports(Sets) {
				return NewError(op, CodeInvalidPolicy, fmt.Sprintf("acl %q: sets need hns 13.0", a.ID))
			}
		}
	}
	return nil
}

func (f *Fake) checkPrefixes(list []string) error {
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return err
		}
		if f.version.Supports(CanonicalCIDRs) && p != p.Masked() {
			return fmt.Errorf("prefix %s has host bits", p)
		}
	}
	return nil
}

// sameJSON compares two settings by their meaning. HNS ignores members that it
// does not know and adds zero ones.
func sameJSON(a, b json.RawMessage) bool {
	var x, y map[string]any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return strings.TrimSpace(string(a)) == strings.TrimSpace(string(b))
	}
	return reflect.DeepEqual(x, y)
}
