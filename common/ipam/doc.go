// SPDX-License-Identifier: Apache-2.0

// Package ipam allocates the addresses of a node's pod ranges, one per family and owner. A released address
// stays in quarantine before reuse, so that stale flows of its former owner do not reach a new pod.
//
// An Allocator is a value in memory; the caller passes the time. Equal calls give equal results. It stores
// nothing: Restore and Release rebuild it from the endpoint records. It is not safe for concurrent use.
package ipam
