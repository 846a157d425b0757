// SPDX-License-Identifier: Apache-2.0

// Package windows is the Backend of Windows nodes: it attaches pods to an HNS
// network and keeps the ACLs of their endpoints equal to a State.
//
// HNS itself is the only store. What is attached and in force is read from it
// every time, endpoints are known by their names, and everything may be
// repeated after a crash. The package runs on any system against hns.Fake; only
// one file of package hns needs Windows.
//
// It does not program the host's own routes (which L2Bridge needs to reach other
// nodes) and no load balancers, and it cannot tell why HNS dropped a packet.
package windows
