// SPDX-License-Identifier: Apache-2.0

package vfp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// Specs returns the ports for the objects of a service: one for every endpoint that is attached to the host or to
// a namespace. netns returns the file of a namespace; an endpoint in a namespace without a file has no port.
func Specs(store *hnstest.Fake, netns func(namespace string) string) ([]Spec, error) {
	ctx := context.Background()
	endpoints, err := store.AllEndpoints(ctx)
	if err != nil {
		return nil, err
	}
	var specs []Spec
	for _, e := range endpoints {
		s := Spec{ID: e.ID, Name: e.Name, Host: store.OnHost(e.ID)}
		if !s.Host {
			if s.NetNS = netns(e.HostComputeNamespace); e.HostComputeNamespace == "" || s.NetNS == "" {
				continue
			}
		}
		n, err := store.Network(ctx, e.HostComputeNetwork)
		if err != nil {
			return nil, err
		}
		if err := s.describe(&n, &e); err != nil {
			return nil, fmt.Errorf("endpoint %s: %w", e.Name, err)
		}
		if s.Rules, s.Broken = store.PortRules(e.ID); s.Broken == nil {
			s.ACLs, s.Broken = store.PortACLs(e.ID)
		}
		specs = append(specs, s)
	}
	return specs, nil
}

// The maximum sizes of packets on a link of 1500 bytes, without and with VXLAN.
const (
	plainMTU  = 1500
	tunnelMTU = 1450
)

func (s *Spec) describe(n *hns.Network, e *hns.Endpoint) error {
	var err error
	if s.MAC, err = net.ParseMAC(e.MACAddress); err != nil {
		return err
	}
	if s.MTU = plainMTU; strings.EqualFold(string(n.Type), string(hns.Overlay)) {
		s.MTU = tunnelMTU
	}
	for _, c := range e.IPConfigurations {
		a, err := netip.ParseAddr(c.IPAddress)
		if err != nil {
			return err
		}
		s.Addresses = append(s.Addresses, netip.PrefixFrom(a, int(c.PrefixLength)))
	}
	for _, r := range e.Routes {
		if a, err := netip.ParseAddr(r.NextHop); err == nil && !s.Host {
			s.Gateways = append(s.Gateways, a)
		}
	}
	s.Revision = revision(n, e)
	return s.translations(e)
}

// translations reads the NAT policies of an endpoint.
func (s *Spec) translations(e *hns.Endpoint) error {
	for _, p := range e.Policies {
		switch {
		case p.Is(hns.TypeOutBoundNAT):
			var policy hns.OutBoundNAT
			if err := p.Decode(&policy); err != nil {
				return err
			}
			n := NAT{V6: policy.Flags&hns.NATIPv6 != 0}
			var err error
			if n.Exceptions, err = prefixes(policy.Exceptions); err == nil {
				n.Destinations, err = prefixes(policy.Destinations)
			}
			if err != nil {
				return err
			}
			s.NAT = append(s.NAT, n)
		case p.Is(hns.TypePortMapping):
			var m hns.PortMapping
			if err := p.Decode(&m); err != nil {
				return err
			}
			s.Mappings = append(s.Mappings, Mapping{Protocol: uint8(m.Protocol), VIP: addressOf(m.VIP), V6: m.Flags&hns.PortMappingIPv6 != 0,
				External: m.ExternalPort, Internal: m.InternalPort})
		}
	}
	return nil
}

// prefixes reads ranges and single addresses.
func prefixes(texts []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, t := range texts {
		p, err := netip.ParsePrefix(t)
		if a := addressOf(t); err != nil && a.IsValid() {
			p, err = a.Prefix(a.BitLen())
		}
		if err != nil {
			return nil, err
		}
		all = append(all, p.Masked())
	}
	return all, nil
}

// revision changes with the ACLs of an endpoint.
func revision(n *hns.Network, e *hns.Endpoint) string {
	var b strings.Builder
	for _, p := range e.Policies {
		if p.Is(hns.TypeACL) || p.Is(hns.TypeTierACL) {
			b.Write(p.Settings)
		}
	}
	for _, p := range n.Policies {
		if p.Is(hns.TypeSet) {
			b.Write(p.Settings)
		}
	}
	return b.String()
}
