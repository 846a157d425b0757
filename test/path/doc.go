// SPDX-License-Identifier: Apache-2.0

// Package path runs sequences of packets through the real programs of the packet path, and compares the result
// for each packet with that of package reference. A packet that is delivered but not permitted is a bypass; one
// that is permitted but dropped is a loss. Sequences are generated from seeds. A failing one is reduced to the
// steps that it needs, and kept in testdata.
//
// Between the programs it replaces the host stack: it routes, translates the addresses of Services, and updates
// connection tracking. It sends no packet to a network.
package path
