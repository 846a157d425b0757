// SPDX-License-Identifier: Apache-2.0

// Package fastpath lets packets between pods of different nodes bypass the host stack: it keeps the program
// from_node attached to the devices that lead to other nodes, and writes the node routes to the maps. It
// attaches programs before it writes routes, and removes routes before it detaches programs.
//
// It is a dataplane.Component; it follows the fabric, not a section of the State. It does not create routes
// or devices: linux/fabric does.
package fastpath
