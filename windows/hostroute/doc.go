// SPDX-License-Identifier: Apache-2.0

// Package hostroute reads and changes the IP stack of a Windows host: its routing table, and the addresses
// and forwarding flags of its interfaces (System, by the IP Helper API).
//
// Its Keeper restores routes of the host that are lost when HNS creates the first network on
// an adapter. HNS moves the adapter's addresses to a new interface. Routes that DHCP and cloud scripts
// added on the old one are lost, among them the route to the metadata service. The package saves the routes
// in a file first, so that they can be restored after a crash too.
//
// The Keeper handles only the routes to the configured destinations. Package hostfabric decides about
// routes to pods.
package hostroute
