// SPDX-License-Identifier: Apache-2.0

// Command maps measures costs of the data path that do not depend on packets, on the
// real kernel. It measures the map writes of an edit that touches 100 pods, the memory
// of all maps, and the attachment of a pod. The cluster has 10,000 pods,
// 1,000 policies and 250 pods on the node. It prints a table, or with -json one
// object per figure: name, value, unit and, if set, the goal.
//
// It needs root, works in namespaces and a bpffs of its own and removes them.
// It sends no packet: test/bench/datapath does.
package main
