// SPDX-License-Identifier: Apache-2.0

// Package foreign finds the host ends of pod interfaces that another CNI plugin made, and records
// them. A host end is a veth interface to which the node routes, or a port of a bridge. Find
// proves which interface belongs to a pod by interface indexes and network namespaces, never by
// names. Scan lists all such interfaces, for pods that no ADD named. The Registry survives a restart of the agent, but not of the node.
//
// It changes no interface, address or route.
package foreign
