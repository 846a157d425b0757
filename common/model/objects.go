// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// PodID names a pod.
type PodID struct{ Namespace, Name string }

// String returns "namespace/name".
func (id PodID) String() string { return id.Namespace + "/" + id.Name }

// Compare orders by namespace, then name.
func (id PodID) Compare(other PodID) int {
	if c := strings.Compare(id.Namespace, other.Namespace); c != 0 {
		return c
	}
	return strings.Compare(id.Name, other.Name)
}

// AnnotationAddresses is by which a pod asks for its addresses, and
// AnnotationAllowedAddresses by which its namespace says which ones its pods may
// ask for.
const (
	AnnotationAddresses        = "isthmus.dev/addresses"
	AnnotationAllowedAddresses = "isthmus.dev/allowed-addresses"
)

// Namespace is what policies see of a namespace.
type Namespace struct {
	Name string
	// Labels always contains kubernetes.io/metadata.name.
	Labels Labels
	// AllowedIPs are the addresses and ranges that its pods may ask for, as written:
	// separated by commas. Without it they may ask for none.
	AllowedIPs string
}

// NamedPort is a container port with a name. A pod may use one name for
// several protocols.
type NamedPort struct {
	Name     string
	Protocol Protocol
	Port     uint16
}

// Pod is what policies and the fabric see of a pod.
type Pod struct {
	PodID
	// UID tells a pod from its successor of the same name; may be empty offline.
	UID    string
	Labels Labels
	// Node is the name of the node it is bound to; empty until it is scheduled.
	Node string
	// IPs are the pod's addresses, at most one per family, empty until known.
	IPs []netip.Addr
	// FixedIPs is what the pod asks to have as addresses when it is attached, as
	// written: one per family, separated by commas.
	FixedIPs string
	// HostNetwork pods share their node's addresses: policies neither select
	// them nor count them as peers.
	HostNetwork bool
	// Finished pods (phase Succeeded or Failed) no longer own their addresses.
	Finished bool
	// Created is seconds since 1970; of two pods that claim one address the
	// younger owns it.
	Created int64
	// Ports are the named ports of its containers and restartable init containers.
	Ports []NamedPort
}

// Policed reports whether policies apply to the pod and count it as a peer.
func (p *Pod) Policed() bool { return !p.HostNetwork && !p.Finished }

// Resolve returns the numbers that a port name stands for on this pod. With
// AnyProtocol every protocol of that name is meant (ClusterNetworkPolicy
// destinationNamedPort).
func (p *Pod) Resolve(name string, protocol Protocol) []NamedPort {
	var found []NamedPort
	for _, port := range p.Ports {
		if port.Name == name && (protocol == AnyProtocol || port.Protocol == protocol) {
			found = append(found, port)
		}
	}
	return found
}

// OS names an operating system as the node label kubernetes.io/os does.
type OS string

// The systems that Isthmus enforces on.
const (
	Linux   OS = "linux"
	Windows OS = "windows"
)

// Node is what policies and the fabric see of a node.
type Node struct {
	Name   string
	OS     OS
	Labels Labels
	// Addresses are the IP addresses of Node.status.addresses; the first of a
	// family is the one that other nodes route to.
	Addresses []netip.Addr
	// PodCIDRs are the ranges that the node's pods take their addresses from.
	PodCIDRs []netip.Prefix
	// Announcement is what it says of itself in annotations.
	Announcement
}

// Announcement is what a node says of itself so that others reach its pods. What
// is zero is not said.
type Announcement struct {
	// Fabric is how the node takes part in the fabric (isthmus.dev/fabric).
	Fabric string
	// VTEP is the hardware address of its tunnels' end (isthmus.dev/vtep-mac).
	VTEP MAC
	// Tunnel is the address to which others send tunneled packets, if it is not
	// the first of its family in the node's addresses (isthmus.dev/vtep-address).
	Tunnel netip.Addr
}

// Text lists what is said, as annotations.
func (a Announcement) Text() string {
	var words []string
	if a.Fabric != "" {
		words = append(words, "isthmus.dev/fabric="+a.Fabric)
	}
	if a.VTEP != (MAC{}) {
		words = append(words, "isthmus.dev/vtep-mac="+a.VTEP.String())
	}
	if a.Tunnel.IsValid() {
		words = append(words, "isthmus.dev/vtep-address="+a.Tunnel.String())
	}
	return strings.Join(words, " ")
}

// Unsaid returns what of the announcement a node's object does not say, nor let
// others find out.
func (a Announcement) Unsaid(n *Node) Announcement {
	if a.Fabric == n.Fabric {
		a.Fabric = ""
	}
	if a.VTEP == n.VTEP {
		a.VTEP = MAC{}
	}
	said := n.Tunnel
	if !said.IsValid() && a.Tunnel.IsValid() {
		said, _ = n.Address(a.Tunnel.Is6())
	}
	if a.Tunnel == said {
		a.Tunnel = netip.Addr{}
	}
	return a
}

// MAC is a hardware address.
type MAC [6]byte

// String returns the usual notation, 02:00:5e:10:00:01.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// Address returns the node's first address of the family of like.
func (n *Node) Address(v6 bool) (netip.Addr, bool) {
	for _, a := range n.Addresses {
		if a.Is6() == v6 {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// ParseMAC reads a hardware address of six bytes that one interface can have.
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil || len(hw) != 6 || hw[0]&1 != 0 || MAC(hw) == (MAC{}) {
		return MAC{}, fmt.Errorf("%q is not the MAC of an interface: write six bytes like 02:00:5e:10:00:01", s)
	}
	return MAC(hw), nil
}
