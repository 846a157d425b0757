// SPDX-License-Identifier: Apache-2.0

// Package hnstest holds Fake, an HNS in memory for tests. It refuses what HNS refuses, with the same codes,
// returns full objects as HNS does, and decides packets by its ACLs.
//
// Tests can plant a Bug in a Fake, give it the Quirks of an installation, and repeat what restarts of the
// service do. The HNS emulator under test/hnsemu serves a Fake to the real hcsshim.
//
// The product does not import it. It does not hang or return late on its own: set Before and After for that.
package hnstest
