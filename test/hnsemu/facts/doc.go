// SPDX-License-Identifier: Apache-2.0

// Package facts states what is known of HNS's ACLs a second time: as a table of
// facts with their sources, and as a small evaluator. Windows/hns states it the
// first time, and the product relies on that.
//
// A mistake about HNS that the writer of ACLs and its evaluator share is invisible
// to a test that asks only the two. So this package shares no code with windows/hns:
// it decodes the JSON that HNS is sent, and its packets have a source and a
// destination instead of a local and a remote side. What no source settles is an
// error and no verdict. See docs/adr/0046-second-opinion-about-hns.md.
//
// It does not decode sets of sets, tiers, or network ACLs, which Isthmus never
// writes. It knows HNS by what others wrote about it, not by asking one.
package facts
