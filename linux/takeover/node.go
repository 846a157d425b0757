// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"net/netip"

	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
)

// Node is what a Plan depends on, as Inspect reads it.
type Node struct {
	// Boot is the ID of this boot of the node.
	Boot    string
	Network Network
	Bridge  Bridge
	// Ports are the ports of the bridge.
	Ports []Port
	// Leases are the addresses that host-local assigned.
	Leases []Lease
	// Records are those of the agent of mode policy.
	Records []endpoint.Record
	// Routes lead to pods of other nodes.
	Routes []Route
	// Tunnels are VXLAN devices of flannel.
	Tunnels []Tunnel
	// Kernel is the version of the kernel: major and minor.
	Kernel [2]int
	// Sysctls are the values of settings that a Plan may change, by their paths below net.
	Sysctls map[string]string
	// HostPorts are the pods, by container ID, whose host ports another plugin forwards.
	HostPorts map[string]bool
}

// Bridge is the device that connects the pods.
type Bridge struct {
	Name  string `json:"name"`
	Index int    `json:"index"`
	MAC   string `json:"mac"`
	MTU   int    `json:"mtu"`
	// Promiscuous is whether it takes every frame, as kubenet and the bridge plugin's promiscMode have it.
	Promiscuous bool `json:"promiscuous,omitempty"`
	// Addresses are those of the node on the bridge: the gateways of the pods.
	Addresses []netip.Prefix `json:"addresses"`
}

// Port is a port of the bridge, and the pod behind it.
type Port struct {
	Name  string
	Index int
	MAC   string
	MTU   int
	// Hairpin is whether the bridge returns a pod's packets to it.
	Hairpin bool
	// Sysctls are the values of its settings that mode full changes, by their paths below net.
	Sysctls map[string]string
	// Problem says why the port cannot be that of a pod; "" if it can.
	Problem string
	// Endpoint is the endpoint whose policy the programs of the port enforce; "" without policy.
	Endpoint model.EndpointID
	Pod      PodEnd
}

// PodEnd is the pod's end of a port.
type PodEnd struct {
	// NetNS is the path of the pod's network namespace; "" if none was found.
	NetNS     string
	IfName    string
	PeerIndex int
	MAC       string
	MTU       int
	// Addresses are global addresses with the length of their prefixes.
	Addresses []netip.Prefix
	// Gateways are the next hops of the default routes.
	Gateways []netip.Addr
	// Others are further interfaces of the pod, besides lo.
	Others []string
}

// Route leads to pods of another node.
type Route struct {
	Prefix   netip.Prefix `json:"prefix"`
	Via      netip.Addr   `json:"via"`
	Device   string       `json:"device"`
	Index    int          `json:"index"`
	Protocol int          `json:"protocol"`
}

// Tunnel is a VXLAN device that leads to other nodes. flanneld keeps its routes, neighbours and forwarding table.
type Tunnel struct {
	Name string `json:"name"`
	MTU  int    `json:"mtu"`
	// Up is whether it is administratively up.
	Up bool `json:"-"`
}

// Pod is a pod that a Plan moves.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Was is the record that the agent of mode policy wrote, Record the one that replaces it.
	Was    endpoint.Record `json:"was"`
	Record endpoint.Record `json:"record"`
	// Port is the host end: its name, index and MAC on the bridge. NewName is its name afterwards.
	Port    string `json:"port"`
	Index   int    `json:"index"`
	HostMAC string `json:"hostMac"`
	MTU     int    `json:"mtu"`
	Hairpin bool   `json:"hairpin,omitempty"`
	// Sysctls are the settings of the host end before.
	Sysctls map[string]string `json:"sysctls,omitempty"`
	NewName string            `json:"newName"`
	// PeerIndex, IfName, MAC and NetNS describe the pod's end, which keeps all of them.
	PeerIndex int            `json:"peerIndex"`
	IfName    string         `json:"ifName"`
	MAC       string         `json:"mac"`
	NetNS     string         `json:"netns"`
	Addresses []netip.Prefix `json:"addresses"`
}

// Gateway returns the address of the bridge in the subnet of an address; false if there is none.
func (b Bridge) Gateway(ip netip.Addr) (netip.Addr, bool) {
	for _, p := range b.Addresses {
		if p.Masked().Contains(ip) {
			return p.Addr(), true
		}
	}
	return netip.Addr{}, false
}
