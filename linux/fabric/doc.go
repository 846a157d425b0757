// SPDX-License-Identifier: Apache-2.0

// Package fabric makes the plans of common/fabric real on a Linux node. It reads
// what is there, changes what differs, and looks again from time to time.
//
// It owns: the device isthmus-vxlan with its addresses, neighbours and
// forwarding entries; routes with Isthmus's protocol number that have a gateway
// or are unreachable, and all of routing table 7300; rules with that protocol
// number; the nftables tables inet isthmus and isthmus-hostports; and the sysctls
// of the device and the uplink. net.ipv4.ip_forward and net.ipv6.conf.all.forwarding are turned on.
//
// Whatever else is in the way is reported and left alone. It decides nothing,
// and does not know policy.
package fabric
