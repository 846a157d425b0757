// SPDX-License-Identifier: Apache-2.0

// Command coredns is CoreDNS with the few plugins that the DNS of a test cluster needs. It is
// a separate module.
//
// Tests build and run it; it is not part of Isthmus.
package main
