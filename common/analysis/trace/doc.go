// SPDX-License-Identifier: Apache-2.0

// Package trace follows a new connection through one node, as a Bundle describes it: the attachment of each
// end, what the policies intend, what the data path holds, and how the packet leaves the node. It names
// every step at which the installed state differs from the intended one.
//
// It sends no packet, and does not know the other node: that node has a Bundle of its own.
package trace
