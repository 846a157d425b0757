// SPDX-License-Identifier: Apache-2.0

// Package hostroute restores routes of a Windows host that are lost when HNS creates the first network on
// an adapter. HNS moves the adapter's addresses to a new interface. Routes that DHCP and cloud scripts
// added on the old one are lost, among them the route to the metadata service. The package saves the routes
// in a file first, so that they can be restored after a crash too.
//
// It handles only the routes to the configured destinations.
package hostroute
