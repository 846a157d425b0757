// SPDX-License-Identifier: Apache-2.0

// Package nodeipam divides a cluster's pod ranges among its nodes: Plan looks at
// all nodes and says which ranges those get that have none. It never changes
// what a node has, and gives out nothing that overlaps something else.
//
// It is a function of its arguments: equal clusters get equal plans. It writes
// nothing, and does not know who asks or how the nodes were read.
package nodeipam
