// SPDX-License-Identifier: Apache-2.0

// Package hostroute keeps routes of a Windows host that are lost when HNS makes
// the first network on an adapter: HNS moves the adapter's addresses to a new
// interface, and what DHCP and the cloud's own scripts had added on the old one
// is gone, the route to the metadata service among it. What was there is noted in
// a file before, so that it can be put back after a crash too.
//
// It does not look at other routes than those it is told to keep.
package hostroute
