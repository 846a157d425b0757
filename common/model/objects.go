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

// AnnotationAddresses is the pod annotation that requests fixed IPs. AnnotationAllowedAddresses is the
// namespace annotation that lists which IPs its pods may request.
const (
	AnnotationAddresses        = "isthmus.dev/addresses"
	AnnotationAllowedAddresses = "isthmus.dev/allowed-addresses"
)

// Namespace holds the fields of a namespace that policies use.
type Namespace struct {
	Name string
	// Labels always contains kubernetes.io/metadata.name.
	Labels Labels
	// AllowedIPs are the addresses and ranges that its pods may request, comma-separated as written. If
	// empty they may request none.
	AllowedIPs string
	// Enforcement is the value of AnnotationEnforcement, as written.
	Enforcement string
}

// NamedPort is a container port with a name. A pod may use one name for
// several protocols.
type NamedPort struct {
	Name     string
	Protocol Protocol
	Port     uint16
}

// Pod holds the fields of a pod that policies and the fabric use.
type Pod struct {
	PodID
	// UID distinguishes a pod from its successor of the same name; may be empty offline.
	UID    string
	Labels Labels
	// Node is the name of the node it is bound to; empty until it is scheduled.
	Node string
	// IPs are the pod's addresses, at most one per family, empty until known.
	IPs []netip.Addr
	// FixedIPs are the addresses that the pod requests, as written: one per family, comma-separated.
	FixedIPs string
	// HostNetwork pods share their node's addresses: policies neither select
	// them nor count them as peers.
	HostNetwork bool
	// Finished pods (phase Succeeded or Failed) no longer own their addresses.
	Finished bool
	// Created is in seconds since 1970. If two pods claim one address, the younger pod owns it.
	Created int64
	// Started is when the network of the pod was ready, in seconds since 1970; 0 while it has no addresses, or if unknown.
	Started int64
	// Ports are the named ports of its containers and restartable init containers.
	Ports []NamedPort
	// HostPorts are the ports of its node that lead to the pod; none on the host network.
	HostPorts []HostPort
}

// Policed reports whether policies apply to the pod and count it as a peer.
func (p *Pod) Policed() bool { return !p.HostNetwork && !p.Finished }

// Resolve returns the ports that a port name means on this pod. AnyProtocol means every protocol of that
// name (ClusterNetworkPolicy destinationNamedPort).
func (p *Pod) Resolve(name string, protocol Protocol) []NamedPort {
	var found []NamedPort
	for _, port := range p.Ports {
		if port.Name == name && (protocol == AnyProtocol || port.Protocol == protocol) {
			found = append(found, port)
		}
	}
	return found
}

// OS is an operating system, spelled as in the node label kubernetes.io/os.
type OS string

// The operating systems that Isthmus supports.
const (
	Linux   OS = "linux"
	Windows OS = "windows"
)

// Node holds the fields of a node that policies and the fabric use.
type Node struct {
	Name   string
	OS     OS
	Labels Labels
	// Addresses are the IP addresses of Node.status.addresses. Other nodes route to the first of each
	// family.
	Addresses []netip.Addr
	// PodCIDRs are the ranges of the node's pod addresses.
	PodCIDRs []netip.Prefix
	// NodeInfo is from annotations of the Node object.
	NodeInfo
	// Foreign is true if OVN-Kubernetes connects the node's pods, not Isthmus.
	Foreign bool
}

// Annotations of the hybrid overlay of OVN-Kubernetes on Node objects (as of 2026-11).
const (
	AnnotationOverlaySubnets = "k8s.ovn.org/node-subnets"
	AnnotationOverlaySubnet  = "k8s.ovn.org/hybrid-overlay-node-subnet"
	AnnotationOverlayMAC     = "k8s.ovn.org/hybrid-overlay-distributed-router-gateway-mac"
)

// NodeInfo is what the agent of a node publishes in annotations, so that other nodes can reach its pods. A
// zero field is not published.
type NodeInfo struct {
	// Fabric is the fabric mode of the node (isthmus.dev/fabric).
	Fabric string
	// VTEP is the MAC of the node's tunnel endpoint (isthmus.dev/vtep-mac).
	VTEP MAC
	// Tunnel is the address of the node's tunnel endpoint, if it is not the first of its family in the
	// node's addresses (isthmus.dev/vtep-address).
	Tunnel netip.Addr
	// Overlay is read and written for OVN-Kubernetes only.
	Overlay Overlay
}

// Overlay holds annotations of the hybrid overlay of OVN-Kubernetes, as written.
type Overlay struct {
	// Subnets is JSON with the pod ranges of a node of OVN (k8s.ovn.org/node-subnets).
	Subnets string
	// Subnet is the pod range of another node (k8s.ovn.org/hybrid-overlay-node-subnet).
	Subnet string
	// MAC is that of the tunnel endpoint (k8s.ovn.org/hybrid-overlay-distributed-router-gateway-mac).
	MAC string
}

// Text returns the published fields as annotations, separated by spaces.
func (a NodeInfo) Text() string {
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
	if a.Overlay.Subnet != "" {
		words = append(words, AnnotationOverlaySubnet+"="+a.Overlay.Subnet)
	}
	if a.Overlay.MAC != "" {
		words = append(words, AnnotationOverlayMAC+"="+a.Overlay.MAC)
	}
	return strings.Join(words, " ")
}

// Missing returns the fields that the Node object lacks and that other nodes cannot derive from it.
func (a NodeInfo) Missing(n *Node) NodeInfo {
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
	if a.Overlay.Subnet == n.Overlay.Subnet {
		a.Overlay.Subnet = ""
	}
	if a.Overlay.MAC == n.Overlay.MAC {
		a.Overlay.MAC = ""
	}
	return a
}

// MAC is a hardware address.
type MAC [6]byte

// String returns the usual notation, 02:00:5e:10:00:01.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// Address returns the node's first address of a family, and whether it has one.
func (n *Node) Address(v6 bool) (netip.Addr, bool) {
	for _, a := range n.Addresses {
		if a.Is6() == v6 {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// ParseMAC parses a unicast hardware address of six bytes.
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil || len(hw) != 6 || hw[0]&1 != 0 || MAC(hw) == (MAC{}) {
		return MAC{}, fmt.Errorf("%q is not the MAC of an interface: write six bytes like 02:00:5e:10:00:01", s)
	}
	return MAC(hw), nil
}
