// SPDX-License-Identifier: Apache-2.0

// Package immutable holds a persistent map: a value that is never modified. An edited copy shares all
// unchanged parts with the original, and costs a few small nodes.
//
// The compiler uses it to find what changed between two versions of a cluster of 100,000 pods, in time
// that grows with the changes and not with the cluster.
//
// A Map does not order its keys, and does not copy what its values point to. Values are compared with ==,
// so that a pointer to an equal object counts as a change. It imports only the standard library.
package immutable
