// SPDX-License-Identifier: Apache-2.0

// Package path runs sequences of packets through the real programs of the packet path
// and compares what becomes of each packet with what package reference says. A packet
// that is delivered but not permitted is a bypass; one that is permitted but dropped is
// a loss. Sequences are generated from seeds. A failing one is reduced to the steps that
// it needs, and kept in testdata.
//
// Between the programs it stands in for the network stack: it routes, translates the
// addresses of Services, and tells connection tracking about it. It sends no packet to
// a network.
package path
