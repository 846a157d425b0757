// SPDX-License-Identifier: Apache-2.0

// Package facts is a second implementation of HNS's ACLs: a table of facts with
// their sources, and a small evaluator. The first one is windows/hns, which the
// product uses.
//
// If the code that writes ACLs and the code that evaluates them share a mistake, a
// test of those two cannot find it. So this package shares no code with windows/hns:
// it decodes the JSON that HNS receives, and its packets have a source and a
// destination instead of a local and a remote side. If no source decides a question,
// the result is an error instead of a verdict. See docs/adr/0046-second-opinion-about-hns.md.
//
// It does not decode sets of sets, tiers, or network ACLs, which Isthmus never
// writes. Its facts come from documents and reports, not from tests on Windows.
package facts
