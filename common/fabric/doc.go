// SPDX-License-Identifier: Apache-2.0

// Package fabric plans how the pods of one node reach the pods of all others: by routes to nodes on the
// same segment, by VXLAN across segments, or by one of them always. It also derives the pods' MTU and which
// traffic is masqueraded.
//
// Nodes learn about each other from Node objects: underlay addresses, pod ranges and annotations. A plan is
// a pure function of these values. Each node makes its own plan. Two nodes agree on a pair because both
// decide from the same values.
//
// It does not touch a system: linux/fabric and windows carry out plans.
package fabric
