// SPDX-License-Identifier: Apache-2.0

// Package ipam gives out the addresses of a node's pod ranges, one per family
// and owner, and keeps a released address in quarantine before it is used
// again, so that nobody's stale flow reaches a new pod.
//
// It is a value in memory with the clock passed in: equal calls give equal
// answers. It stores nothing; the endpoint records are the only store, and
// Restore and Release rebuild an Allocator from them. It is not safe for
// concurrent use.
package ipam
