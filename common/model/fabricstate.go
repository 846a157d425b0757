// SPDX-License-Identifier: Apache-2.0

package model

import "net/netip"

// FabricState locates the pods of the cluster: on this node, and on which other nodes.
type FabricState struct {
	// PodCIDRs are the ranges of this node's pod addresses.
	PodCIDRs []netip.Prefix
	// NodeAddresses are the addresses of this node's Node object.
	NodeAddresses []netip.Addr
	// Routes are the other nodes, sorted by name.
	Routes []Route
	// ServiceCIDRs are the ranges of Services that ServiceCIDR objects name, sorted.
	ServiceCIDRs []netip.Prefix
}

// Route is another node, with what is needed to reach it and its pods.
type Route struct {
	Node string
	OS   OS
	// Addresses are the node's underlay addresses, at most one per family.
	Addresses []netip.Addr
	PodCIDRs  []netip.Prefix
	// NodeInfo is what the node publishes in annotations.
	NodeInfo
	// Foreign is that of the Node.
	Foreign bool
}
