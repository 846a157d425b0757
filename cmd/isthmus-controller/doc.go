// SPDX-License-Identifier: Apache-2.0

// Command isthmus-controller gives pod ranges to nodes, in clusters whose control
// plane does not allocate node.spec.podCIDRs. Several may run; one works.
//
// It does nothing else: pods, policies and the network are the agents'.
package main
