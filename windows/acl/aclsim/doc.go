// SPDX-License-Identifier: Apache-2.0

// Package aclsim decides flows of one node by its HNS ACLs, as HNS would.
//
// A Node holds the lists of ACLs for every profile of HNS. It decides under every
// reading, that is, every possible meaning of what HNS leaves undocumented. All
// readings must agree; a disagreement is an error.
//
// It does not connect to HNS, and does not compare its verdicts with other engines.
package aclsim
