// SPDX-License-Identifier: Apache-2.0

// Command coredns is CoreDNS with the few plugins that the DNS of a test's
// cluster needs, a module of its own.
//
// It is built and run by tests; it is no part of Isthmus.
package main
