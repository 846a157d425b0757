// SPDX-License-Identifier: Apache-2.0

// Package fabric applies the plans of common/fabric to a Linux node. It reads the present
// state, changes what differs, and checks it periodically.
//
// It is a dataplane.Component and reads the section Fabric of a State.
//
// It owns: the device isthmus-vxlan with its addresses, neighbours and forwarding entries; the
// nftables table inet isthmus; and the sysctls of the device and the uplink. It owns routes with
// Isthmus's protocol number that have a gateway or are unreachable, all of routing table 7300,
// and rules with that protocol number. It turns on net.ipv4.ip_forward and
// net.ipv6.conf.all.forwarding.
//
// It reports conflicting objects of other owners and leaves them alone. It decides nothing, and
// does not know policy.
package fabric
