// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Policy is the envelope of every policy of networks, subnets and endpoints. Settings is one of the setting
// types below.
type Policy struct {
	Type     string
	Settings json.RawMessage `json:",omitempty"`
}

// The policy types that Isthmus uses or must preserve. HNS compares them without case.
const (
	TypeACL               = "ACL"
	TypeSet               = "SetPolicy"
	TypeOutBoundNAT       = "OutBoundNAT"
	TypeSDNRoute          = "SDNRoute"
	TypeProviderAddress   = "ProviderAddress"
	TypeNetAdapterName    = "NetAdapterName"
	TypeHostRoute         = "HostRoute"
	TypeVSID              = "VSID"
	TypeDrMacAddress      = "DrMacAddress"
	TypeRemoteSubnetRoute = "RemoteSubnetRoute"
	TypeL2Driver          = "L2Driver"
	TypePortMapping       = "PortMapping"
	TypeQOS               = "QOS"
	TypeTierACL           = "TierAcl"
	TypeNetworkACL        = "NetworkACL"
)

// UnknownOrder says which policy of an endpoint or a network has rules whose order relative to ACLs is not documented, so that they
// may pass what ACLs block; "" if none has.
func UnknownOrder(policies []Policy) string {
	i := slices.IndexFunc(policies, func(p Policy) bool { return p.Is(TypeTierACL) || p.Is(TypeNetworkACL) })
	if i < 0 {
		return ""
	}
	return fmt.Sprintf("it has a %s policy of another program, and the order of that and of ACLs is not known: remove it", policies[i].Type)
}

// MakePolicy wraps settings.
func MakePolicy(kind string, settings any) Policy {
	raw, err := json.Marshal(settings)
	if err != nil {
		// The settings of this package are structs of strings and numbers.
		raw = json.RawMessage(`{}`)
	}
	return Policy{Type: kind, Settings: raw}
}

// Is reports whether the policy is of a type.
func (p Policy) Is(kind string) bool { return strings.EqualFold(p.Type, kind) }

// Decode parses the settings into one of the setting types.
func (p Policy) Decode(into any) error {
	if err := json.Unmarshal(p.Settings, into); err != nil {
		return fmt.Errorf("decode settings of policy %s: %w", p.Type, err)
	}
	return nil
}

// Action is the action of an ACL.
type Action string

// Direction is the direction of a packet from the view of its endpoint.
type Direction string

// RuleType is the layer of an ACL: Switch is VFP, outside the pod; Host is the Windows Firewall of the
// pod's compartment.
type RuleType string

// The values of ACL members.
const (
	Allow Action = "Allow"
	Block Action = "Block"

	In  Direction = "In"
	Out Direction = "Out"

	Switch RuleType = "Switch"
	Host   RuleType = "Host"
)

// AnyProtocol is the number in ACL.Protocols that means every protocol.
const AnyProtocol = 256

// The valid priorities of Switch rules. A lower number takes precedence.
const (
	MinPriority = 100
	MaxPriority = 65500
)

// ACL is one rule of an endpoint. The matching rule with the lowest priority number decides.
//
// An empty member means any. Protocols is a comma separated list of numbers ("6,17") or "256" for any.
// Addresses are a comma separated list of addresses and canonical CIDRs; ports of numbers and ranges
// ("80,8000-8010"). With plain addresses, Local is the endpoint's side and Remote the peer's. With the id
// of a set in place of addresses, Local is the source and Remote the destination of the packet, in both
// directions. Ports do not change sides: LocalPorts is the endpoint's side.
type ACL struct {
	ID              string `json:"Id,omitempty"`
	Protocols       string `json:",omitempty"`
	Action          Action
	Direction       Direction
	LocalAddresses  string   `json:",omitempty"`
	RemoteAddresses string   `json:",omitempty"`
	LocalPorts      string   `json:",omitempty"`
	RemotePorts     string   `json:",omitempty"`
	RuleType        RuleType `json:",omitempty"`
	Priority        uint16   `json:",omitempty"`
}

// Policy wraps the ACL.
func (a ACL) Policy() Policy { return MakePolicy(TypeACL, a) }

// ErrNarrowed is the error of Policy.ACL for an ACL that matches fewer packets than its members in ACL say.
var ErrNarrowed = errors.New("has a port or a service of schema 1, which limits it to fewer packets")

// shown is an ACL as HNS shows it. The further members are of schema 1: clients of this package never write them, and HNS shows them
// with zero values, if at all.
type shown struct {
	ACL
	InternalPort, LocalPort, RemotePort, ServiceName any
}

// ACL decodes an ACL. With ErrNarrowed it also returns the members that it knows.
func (p Policy) ACL() (ACL, error) {
	var s shown
	if err := p.Decode(&s); err != nil {
		return ACL{}, err
	}
	for _, v := range [...]any{s.InternalPort, s.LocalPort, s.RemotePort, s.ServiceName} {
		if v != nil && v != "" && v != 0.0 {
			return s.ACL, fmt.Errorf("acl %q %w: %v", s.ID, ErrNarrowed, v)
		}
	}
	return s.ACL, nil
}

// Normal returns the ACL in the spelling of this package, so that an answer of HNS can be compared with the
// request.
func (a ACL) Normal() ACL {
	for _, v := range []Action{Allow, Block} {
		if strings.EqualFold(string(a.Action), string(v)) {
			a.Action = v
		}
	}
	for _, v := range []Direction{In, Out} {
		if strings.EqualFold(string(a.Direction), string(v)) {
			a.Direction = v
		}
	}
	for _, v := range []RuleType{Switch, Host} {
		if strings.EqualFold(string(a.RuleType), string(v)) {
			a.RuleType = v
		}
	}
	if a.Protocols == "" {
		a.Protocols = "256"
	}
	return a
}

// SetPolicy is a named set of addresses on a network that ACLs of its endpoints
// may refer to by ID. It needs HNS 13.0. Values is a comma separated list.
type SetPolicy struct {
	ID         string `json:"Id"`
	Name       string
	PolicyType string
	Values     string
}

// IPSet is the PolicyType of a set of addresses.
const IPSet = "IPSET"

// Policy wraps the set.
func (s SetPolicy) Policy() Policy { return MakePolicy(TypeSet, s) }

// Sets returns the address sets of a network in the order of its policies.
func (n *Network) Sets() ([]SetPolicy, error) {
	var sets []SetPolicy
	for _, p := range n.Policies {
		if !p.Is(TypeSet) {
			continue
		}
		var s SetPolicy
		if err := p.Decode(&s); err != nil {
			return nil, err
		}
		if strings.EqualFold(s.PolicyType, IPSet) {
			sets = append(sets, s)
		}
	}
	return sets, nil
}

// HoldsSet reports whether the network has exactly this set, in any order and spelling of its values. It does not decode other sets, which
// may be many and large.
func (n *Network) HoldsSet(want SetPolicy) (bool, error) {
	normal := want
	normal.Values = NormalAddresses(want.Values)
	for _, p := range n.Policies {
		if !p.Is(TypeSet) || !bytes.Contains(p.Settings, []byte(want.ID)) {
			continue
		}
		var s SetPolicy
		if err := p.Decode(&s); err != nil {
			return false, err
		}
		if s == want {
			return true, nil
		}
		if s.Values = NormalAddresses(s.Values); s == normal {
			return true, nil
		}
	}
	return false, nil
}

// NATIPv6 is the OutBoundNAT flag of the IPv6 policy; an endpoint has at most one policy per family.
const NATIPv6 = 2

// OutBoundNAT replaces the source address of TCP and UDP with the node's unless the destination is in
// Exceptions (canonical CIDRs).
type OutBoundNAT struct {
	Exceptions []string `json:",omitempty"`
	// Destinations inverts the policy: only traffic to them gets the node's address.
	Destinations []string `json:",omitempty"`
	Flags        uint32   `json:",omitempty"`
}

// PortMapping forwards a port of the node to a port of the endpoint. Protocol is an IP protocol number; an
// empty VIP is the node's own address.
type PortMapping struct {
	Protocol     uint32 `json:",omitempty"`
	InternalPort uint16 `json:",omitempty"`
	ExternalPort uint16 `json:",omitempty"`
	VIP          string `json:",omitempty"`
	Flags        uint32 `json:",omitempty"`
}

// QOS limits the egress of an endpoint. HNS has no limit for ingress, and chooses bursts itself.
type QOS struct {
	MaximumOutgoingBandwidthInBytes uint64 // per second
}

// PortMappingIPv6 is the flag of a PortMapping for IPv6.
const PortMappingIPv6 = 2

// RemoteSubnetRoute routes a range of pods in an overlay network to its node: the underlay address, the MAC
// address of the tunnel endpoint, and the VXLAN network identifier.
type RemoteSubnetRoute struct {
	DestinationPrefix string
	IsolationID       uint16 `json:"IsolationId"`
	ProviderAddress   string
	DrMacAddress      string `json:"DistributedRouterMacAddress"`
}

// SDNRoute sends a destination of an l2bridge endpoint to the host.
type SDNRoute struct {
	DestinationPrefix string `json:",omitempty"`
	NextHop           string `json:",omitempty"`
	NeedEncap         bool   `json:",omitempty"`
}

// ProviderAddress is the underlay address of an overlay endpoint's node, or of a network.
type ProviderAddress struct {
	ProviderAddress string `json:",omitempty"`
}

// NetAdapterName selects the physical adapter of a network.
type NetAdapterName struct {
	NetworkAdapterName string `json:",omitempty"`
}

// IsolationID is the settings of a VSID policy: the VXLAN network identifier.
type IsolationID struct {
	IsolationID uint32 `json:"IsolationId"`
}

// DrMacAddress is the MAC address of an overlay network's tunnel endpoint; HNS adds it to a network some
// time after creation.
type DrMacAddress struct {
	Address string `json:",omitempty"`
}
