// SPDX-License-Identifier: Apache-2.0

// Package denylist keeps deny lists in force on the uplinks of a node: it lays a deny set out with
// linux/denymap and attaches the program of linux/xdp. Addresses of the machine and those of
// Config.NeverDeny are exempt. It checks the devices every 10 seconds, because default routes change.
//
// It is a dataplane.Component; its section of a State is Deny. It does not decide which addresses are
// denied, and does not touch packets of pods to each other.
package denylist
