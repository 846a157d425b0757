// SPDX-License-Identifier: Apache-2.0

// Package link makes veth pairs between pods and the host, their addresses,
// routes and neighbours, the sysctls of those interfaces, and the queues that
// limit some. Every call may be repeated and puts right what differs.
//
// A pod has its address alone (/32, /128) and one next hop that exists on no
// interface, 169.254.1.1 or fe80::1, resolved by a permanent neighbour entry to
// the host's end of the pair; the host has a route and a permanent neighbour
// for each pod. So no ARP or neighbour discovery is needed between them.
//
// It knows nothing of policy, nor of other nodes.
package link
