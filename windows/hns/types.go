// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
)

// NetworkType is the kind of a network.
type NetworkType string

// The types that Isthmus creates.
const (
	L2Bridge NetworkType = "L2Bridge"
	Overlay  NetworkType = "Overlay"
)

// NonPersistent is the network flag that makes HNS drop a network on reboot, so that no stale vSwitch comes
// back with it.
const NonPersistent = 8

// RemoteEndpoint is the endpoint flag of an address on another node: it has no port on the vSwitch and
// cannot be attached.
const RemoteEndpoint = 1

// SchemaVersion is the schema of a document.
type SchemaVersion struct {
	Major int
	Minor int
}

// Schema2 is the schema of every document in this package.
var Schema2 = SchemaVersion{Major: 2, Minor: 0}

// Route is a route of a subnet or an endpoint.
type Route struct {
	NextHop           string `json:",omitempty"`
	DestinationPrefix string `json:",omitempty"`
	Metric            uint16 `json:",omitempty"`
}

// Subnet is one range of addresses of a network. HNS requires a default route in Routes; its NextHop
// becomes the subnet's gateway and is reserved.
type Subnet struct {
	IPAddressPrefix string   `json:"IpAddressPrefix,omitempty"`
	Policies        []Policy `json:",omitempty"`
	Routes          []Route  `json:",omitempty"`
	Flags           uint32   `json:",omitempty"`
}

// Gateway returns the next hop of the default route; "" without one.
func (s Subnet) Gateway() string {
	i := slices.IndexFunc(s.Routes, func(r Route) bool {
		p, err := netip.ParsePrefix(r.DestinationPrefix)
		return err == nil && p.Bits() == 0
	})
	if i < 0 {
		return ""
	}
	return s.Routes[i].NextHop
}

// VNI returns the VXLAN network identifier of a subnet of an overlay network; 0 without one.
func (s Subnet) VNI() uint32 {
	var id IsolationID
	i := slices.IndexFunc(s.Policies, func(p Policy) bool { return p.Is(TypeVSID) })
	if i < 0 || s.Policies[i].Decode(&id) != nil {
		return 0
	}
	return id.IsolationID
}

// Ipam holds the subnets of a network. Type is "Static" or "DHCP".
type Ipam struct {
	Type    string   `json:",omitempty"`
	Subnets []Subnet `json:",omitempty"`
}

// Network is a network with its vSwitch. IDs are GUIDs, compared without case. MACPool and DNS are stored
// unchanged; Isthmus leaves both to HNS.
type Network struct {
	ID            string          `json:"ID,omitempty"`
	Name          string          `json:",omitempty"`
	Type          NetworkType     `json:",omitempty"`
	Policies      []Policy        `json:",omitempty"`
	MACPool       json.RawMessage `json:"MacPool,omitempty"`
	DNS           json.RawMessage `json:"Dns,omitempty"`
	Ipams         []Ipam          `json:",omitempty"`
	Flags         uint32          `json:",omitempty"`
	SchemaVersion SchemaVersion
}

// Subnets returns the subnets of all Ipams.
func (n *Network) Subnets() []Subnet {
	var all []Subnet
	for _, i := range n.Ipams {
		all = append(all, i.Subnets...)
	}
	return all
}

// DNS is the configuration of a resolver.
type DNS struct {
	Domain     string   `json:",omitempty"`
	Search     []string `json:",omitempty"`
	ServerList []string `json:",omitempty"`
	Options    []string `json:",omitempty"`
}

// IsZero reports whether HNS leaves the resolver to the host.
func (d DNS) IsZero() bool {
	return d.Domain == "" && len(d.Search) == 0 && len(d.ServerList) == 0 && len(d.Options) == 0
}

// IPConfig is one address of an endpoint. PrefixLength comes from the subnet.
type IPConfig struct {
	IPAddress    string `json:"IpAddress,omitempty"`
	PrefixLength uint8  `json:",omitempty"`
}

// Endpoint is a port on a network. Attaching sets HostComputeNamespace, which creation rejects. Names need
// not be unique.
type Endpoint struct {
	ID                   string     `json:"ID,omitempty"`
	Name                 string     `json:",omitempty"`
	HostComputeNetwork   string     `json:",omitempty"`
	HostComputeNamespace string     `json:",omitempty"`
	Policies             []Policy   `json:",omitempty"`
	IPConfigurations     []IPConfig `json:"IpConfigurations,omitempty"`
	Routes               []Route    `json:",omitempty"`
	// DNS configures the resolver of the endpoint's compartment. HNS takes it at creation only. Containers of
	// an endpoint without it get the resolver of the host.
	DNS DNS `json:"Dns,omitzero"`
	// MACAddress has the form 0E-2A-0A-28-03-07.
	MACAddress    string `json:"MacAddress,omitempty"`
	Flags         uint32 `json:",omitempty"`
	SchemaVersion SchemaVersion
}

// Remote reports whether the endpoint represents an address on another node.
func (e *Endpoint) Remote() bool { return e.Flags&RemoteEndpoint != 0 }

// ACLs returns the endpoint's ACLs in the order in which HNS lists them. The errors are those of Policy.ACL.
func (e *Endpoint) ACLs() ([]ACL, error) {
	var acls []ACL
	for _, p := range e.Policies {
		if !p.Is(TypeACL) {
			continue
		}
		a, err := p.ACL()
		if err != nil {
			return nil, err
		}
		acls = append(acls, a)
	}
	return acls, nil
}

// Resource is an object in a namespace. Data is {"ID": GUID} for an endpoint.
type Resource struct {
	Type string
	Data json.RawMessage
}

// Namespace is an HCN namespace: the counterpart of a network namespace on Linux.
type Namespace struct {
	ID            string     `json:"ID,omitempty"`
	NamespaceID   uint32     `json:"NamespaceId,omitempty"`
	Type          string     `json:",omitempty"`
	Resources     []Resource `json:",omitempty"`
	SchemaVersion SchemaVersion
}

// EndpointIDs lists the endpoints in the namespace.
func (n *Namespace) EndpointIDs() []string {
	var ids []string
	for _, r := range n.Resources {
		var data struct{ ID string }
		if r.Type == "Endpoint" && json.Unmarshal(r.Data, &data) == nil {
			ids = append(ids, data.ID)
		}
	}
	return ids
}

// SameID compares two GUIDs; HNS returns upper or lower case.
func SameID(a, b string) bool { return strings.EqualFold(a, b) }
