// SPDX-License-Identifier: Apache-2.0

// Package outbound decides which traffic of Windows pods gets the address of the node: all that leaves the
// cluster. The ranges of the cluster follow from a State, and are the exceptions of an OutBoundNAT policy of
// HNS.
//
// It is pure: it neither reads nor writes HNS.
package outbound
