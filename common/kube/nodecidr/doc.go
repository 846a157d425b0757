// SPDX-License-Identifier: Apache-2.0

// Package nodecidr assigns pod ranges to nodes without any. It follows the Node objects of an API server
// and writes their spec.podCIDRs, as common/nodeipam plans it. Of several controllers one works, elected by
// a Lease.
//
// Each plan is made from a fresh list of the API server, not from a cache. Existing ranges of a node never
// change.
//
// It does not delete nodes, and does not route pod traffic.
package nodecidr
