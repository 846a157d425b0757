// SPDX-License-Identifier: Apache-2.0

// Package nodecidr gives pod ranges to the nodes that have none: it follows the
// Node objects of an API server and writes their spec.podCIDRs, as
// common/nodeipam plans it. Of several controllers one works, by a Lease.
//
// Each plan is made of a list that the API server answers for, not of one that
// it or the controller remembers; what a node has is never changed.
//
// It does not delete nodes, and does not say where their pods' packets go.
package nodecidr
