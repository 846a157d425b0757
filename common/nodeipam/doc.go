// SPDX-License-Identifier: Apache-2.0

// Package nodeipam divides a cluster's pod ranges among its nodes. MakePlan takes all nodes and returns the
// ranges of those that have none. It never changes existing ranges of a node, and never allocates a block
// that overlaps another range.
//
// It is a pure function: equal clusters get equal plans. It writes nothing, and reads no nodes itself.
package nodeipam
