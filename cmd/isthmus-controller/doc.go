// SPDX-License-Identifier: Apache-2.0

// Command isthmus-controller assigns pod ranges to nodes, in clusters whose control plane does not allocate
// node.spec.podCIDRs. Several may run; one is elected.
//
// It does nothing else: agents handle pods, policies and the network.
package main
