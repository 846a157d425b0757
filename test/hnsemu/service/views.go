// SPDX-License-Identifier: Apache-2.0

package service

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// view is an object in the form of schema 1.
type view map[string]any

// renamed are the policies and fields whose names differ between the schemas: name in schema 1,
// name in schema 2.
var (
	renamedTypes   = [][2]string{{"NAT", hns.TypePortMapping}, {"ROUTE", hns.TypeSDNRoute}, {"PA", hns.TypeProviderAddress}}
	renamedMembers = map[string][][2]string{
		hns.TypeOutBoundNAT:     {{"ExceptionList", "Exceptions"}, {"VIP", "VirtualIP"}},
		hns.TypeProviderAddress: {{"PA", "ProviderAddress"}},
		hns.TypeVSID:            {{"VSID", "IsolationId"}},
		"VLAN":                  {{"VLAN", "IsolationId"}},
	}
)

// policy1 converts a flat policy of schema 1. It refuses names of schema 2.
func policy1(flat document) (hns.Policy, error) {
	kind := flat.text("Type")
	for _, names := range renamedTypes {
		if strings.EqualFold(kind, names[1]) {
			return hns.Policy{}, hns.NewError("policy", hns.CodeInvalidPolicyType, "policy type "+kind+" is of schema 2")
		}
	}
	for _, names := range renamedTypes {
		if strings.EqualFold(kind, names[0]) {
			kind = names[1]
		}
	}
	settings := document{}
	for name, value := range flat {
		if name != "Type" {
			settings[name] = value
		}
	}
	for _, names := range renamedMembers[kind] {
		if value, ok := settings[names[0]]; ok {
			delete(settings, names[0])
			settings[names[1]] = value
		}
	}
	if protocol, ok := settings["Protocol"].(float64); ok && strings.EqualFold(kind, hns.TypeACL) {
		delete(settings, "Protocol")
		settings["Protocols"] = strconv.Itoa(int(protocol))
	}
	if name, ok := settings["Protocol"].(string); ok && kind == hns.TypePortMapping {
		number, known := protocolNumbers[strings.ToLower(name)]
		if !known {
			return hns.Policy{}, hns.NewError("policy", hns.CodeInvalidPolicy, "protocol "+name+" of a port mapping")
		}
		settings["Protocol"] = number
	}
	return hns.MakePolicy(kind, settings), nil
}

// protocolNumbers are the protocols whose ports schema 1 can map.
var protocolNumbers = map[string]int{"tcp": protocolTCP, "udp": protocolUDP}

const (
	protocolTCP = 6
	protocolUDP = 17
)

// flatten is the inverse of policy1.
func flatten(p hns.Policy) view {
	flat := view{}
	_ = json.Unmarshal(p.Settings, &flat) // Settings is an object or empty
	for _, names := range renamedMembers[p.Type] {
		if value, ok := flat[names[1]]; ok {
			delete(flat, names[1])
			flat[names[0]] = value
		}
	}
	for name, number := range protocolNumbers {
		if flat["Protocol"] == float64(number) && p.Is(hns.TypePortMapping) {
			flat["Protocol"] = strings.ToUpper(name)
		}
	}
	flat["Type"] = p.Type
	for _, names := range renamedTypes {
		if p.Is(names[1]) {
			flat["Type"] = names[0]
		}
	}
	return flat
}

func flattenAll(list []hns.Policy) []view {
	all := []view{}
	for _, p := range list {
		all = append(all, flatten(p))
	}
	return all
}

func policies1(list []document) ([]hns.Policy, error) {
	var all []hns.Policy
	for _, flat := range list {
		p, err := policy1(flat)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// network1 parses a network of schema 1.
func network1(text string) (hns.Network, error) {
	var d struct {
		ID, Name, Type, NetworkAdapterName string
		Policies                           []document
		MacPools                           json.RawMessage
		Subnets                            []struct {
			AddressPrefix, GatewayAddress string
			Policies                      []document
		}
	}
	if err := decode(text, &d); err != nil {
		return hns.Network{}, err
	}
	n := hns.Network{ID: d.ID, Name: d.Name, Type: hns.NetworkType(d.Type), SchemaVersion: hns.Schema2}
	var err error
	if n.Policies, err = policies1(d.Policies); err != nil {
		return n, err
	}
	if d.NetworkAdapterName != "" {
		n.Policies = append(n.Policies, hns.MakePolicy(hns.TypeNetAdapterName, hns.NetAdapterName{NetworkAdapterName: d.NetworkAdapterName}))
	}
	if len(d.MacPools) > 0 {
		n.MACPool, _ = json.Marshal(map[string]json.RawMessage{"Ranges": d.MacPools})
	}
	for _, s := range d.Subnets {
		subnet := hns.Subnet{IPAddressPrefix: s.AddressPrefix}
		if s.GatewayAddress != "" {
			subnet.Routes = []hns.Route{{NextHop: s.GatewayAddress, DestinationPrefix: defaultOf(s.AddressPrefix)}}
		}
		if subnet.Policies, err = policies1(s.Policies); err != nil {
			return n, err
		}
		if len(n.Ipams) == 0 {
			n.Ipams = []hns.Ipam{{Type: "Static"}}
		}
		n.Ipams[0].Subnets = append(n.Ipams[0].Subnets, subnet)
	}
	return n, nil
}

func (s *Service) networkView(n hns.Network) view {
	v := view{"ID": strings.ToUpper(n.ID), "Name": n.Name, "Type": n.Type, "Policies": flattenAll(n.Policies), "State": 1}
	var subnets []view
	for _, subnet := range n.Subnets() {
		flat := view{"AddressPrefix": subnet.IPAddressPrefix, "Policies": flattenAll(subnet.Policies)}
		for _, r := range subnet.Routes {
			if r.DestinationPrefix == defaultOf(subnet.IPAddressPrefix) {
				flat["GatewayAddress"] = r.NextHop
			}
		}
		subnets = append(subnets, flat)
	}
	v["Subnets"] = subnets
	for _, p := range n.Policies {
		var address hns.ProviderAddress
		if p.Is(hns.TypeProviderAddress) && p.Decode(&address) == nil {
			v["ManagementIP"] = address.ProviderAddress
		}
	}
	if v["ManagementIP"] == nil && s.config.HNS.ManagementIP != "" {
		v["ManagementIP"] = s.config.HNS.ManagementIP
	}
	var pool struct{ Ranges []view }
	if json.Unmarshal(n.MACPool, &pool) == nil {
		v["MacPools"] = pool.Ranges
	}
	return v
}

// endpoint1 parses an endpoint of schema 1.
func endpoint1(text string) (hns.Endpoint, error) {
	var d struct {
		ID, Name, VirtualNetwork, MacAddress, IPAddress, IPv6Address string
		GatewayAddress, GatewayAddressV6                             string
		DNSServerList, DNSSuffix, DNSDomain                          string
		IsRemoteEndpoint                                             bool
		Policies                                                     []document
	}
	if err := decode(text, &d); err != nil {
		return hns.Endpoint{}, err
	}
	e := hns.Endpoint{ID: d.ID, Name: d.Name, HostComputeNetwork: d.VirtualNetwork, MACAddress: d.MacAddress, SchemaVersion: hns.Schema2}
	for _, a := range []string{d.IPAddress, d.IPv6Address} {
		if a != "" {
			e.IPConfigurations = append(e.IPConfigurations, hns.IPConfig{IPAddress: a})
		}
	}
	for _, r := range []hns.Route{{NextHop: d.GatewayAddress, DestinationPrefix: "0.0.0.0/0"}, {NextHop: d.GatewayAddressV6, DestinationPrefix: "::/0"}} {
		if r.NextHop != "" {
			e.Routes = append(e.Routes, r)
		}
	}
	if d.IsRemoteEndpoint {
		e.Flags = hns.RemoteEndpoint
	}
	e.DNS = hns.DNS{ServerList: splitList(d.DNSServerList), Search: splitList(d.DNSSuffix), Domain: d.DNSDomain}
	var err error
	e.Policies, err = policies1(d.Policies)
	return e, err
}

func splitList(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

func (s *Service) endpointView(e hns.Endpoint) view {
	v := view{"ID": strings.ToUpper(e.ID), "Name": e.Name, "VirtualNetwork": strings.ToUpper(e.HostComputeNetwork), "MacAddress": e.MACAddress,
		"Policies": flattenAll(e.Policies), "State": s.config.HNS.State(e.ID), "IsRemoteEndpoint": e.Remote()}
	if n, err := s.get(networks, e.HostComputeNetwork); err == nil {
		v["VirtualNetworkName"] = n.(hns.Network).Name
	}
	for _, c := range e.IPConfigurations {
		if strings.Contains(c.IPAddress, ":") {
			v["IPv6Address"], v["IPv6PrefixLength"] = c.IPAddress, c.PrefixLength
		} else {
			v["IPAddress"], v["PrefixLength"] = c.IPAddress, c.PrefixLength
		}
	}
	for _, r := range e.Routes {
		switch r.DestinationPrefix {
		case "0.0.0.0/0":
			v["GatewayAddress"] = r.NextHop
		case "::/0":
			v["GatewayAddressV6"] = r.NextHop
		}
	}
	if containers := s.shares[e.ID]; len(containers) > 0 {
		v["SharedContainers"] = containers
	}
	if e.HostComputeNamespace != "" {
		v["Namespace"] = view{"ID": e.HostComputeNamespace}
	}
	// Schema 1 has no DNS options.
	v["DNSServerList"], v["DNSSuffix"], v["DNSDomain"] = strings.Join(e.DNS.ServerList, ","), strings.Join(e.DNS.Search, ","), e.DNS.Domain
	return v
}
