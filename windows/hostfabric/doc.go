// SPDX-License-Identifier: Apache-2.0

// Package hostfabric makes a Windows host route for the pods of an L2Bridge network: it keeps routes to the
// pods of other nodes, and IP forwarding of the interfaces that pod traffic crosses. It checks the MTU of
// the host's interface to other nodes.
//
// It is a dataplane.Component and reads the section Fabric of a State.
//
// It owns the routes with protocol NETMGMT, the metric Metric and a next hop. It owns a forwarding flag
// while its file says that it has turned the flag on. It reports routes of others to the same ranges and
// leaves them alone.
//
// It does not create networks, and does not know policy. The tunnels of overlay networks are routes of HNS,
// which package fabric keeps.
package hostfabric
