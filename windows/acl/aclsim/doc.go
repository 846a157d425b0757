// SPDX-License-Identifier: Apache-2.0

// Package aclsim decides flows of one node by its HNS ACLs, as HNS would.
//
// A Node holds the lists for every profile of HNS and decides under every reading
// of what HNS leaves undocumented. All must agree; a disagreement is an error.
//
// It talks to no HNS and compares with nothing else.
package aclsim
