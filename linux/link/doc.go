// SPDX-License-Identifier: Apache-2.0

// Package link creates veth pairs between pods and the host, their addresses, routes and
// neighbours, and the sysctls of those interfaces. Every call may be repeated and repairs
// differences.
//
// A pod has its address alone (/32, /128) and one next hop that exists on no interface,
// 169.254.1.1 or fe80::1. A permanent neighbour entry resolves it to the host end of the pair.
// The host has a route and a permanent neighbour for each pod. So neither needs ARP or
// neighbour discovery.
//
// It knows nothing of policy, nor of other nodes. Package bandwidth limits the interfaces.
package link
