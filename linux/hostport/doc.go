// SPDX-License-Identifier: Apache-2.0

// Package hostport redirects ports of the node to pods, by the nftables table inet isthmus-hostports. The
// node's own connections to ports on which one of its processes listens stay with that process. The
// package compares the table every 5 seconds and lists sockets every second.
//
// It is a dataplane.Component and EndpointObserver: host ports belong to attachments, not to a State. It
// also owns the sysctl route_localnet of the pods' interfaces. It does not assign host ports, and does not
// know policy, which applies to redirected packets as to all others.
package hostport
