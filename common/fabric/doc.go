// SPDX-License-Identifier: Apache-2.0

// Package fabric plans how the pods of one node reach the pods of all others:
// by routes to nodes on the same segment, by VXLAN across segments, or by one
// of them always. It also derives the pods' MTU and says which addresses are
// not hidden behind the node.
//
// What nodes have to know of each other is in their Node objects: underlay
// addresses, pod ranges, and two annotations. A plan is a pure function of
// them; every node makes its own, and two nodes agree on a pair because each
// decides it from the same values.
//
// It touches no system: linux/fabric and windows make plans real.
package fabric
