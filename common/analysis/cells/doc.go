// SPDX-License-Identifier: Apache-2.0

// Package cells compares everything that says what the endpoints of a node may
// do: the reference evaluator, the compiled tables, the entries of the BPF maps,
// and the HNS ACLs of every profile under every reading. Maps and Lists are
// interfaces of nouns; linux/policymap/mapsim and windows/acl/aclsim implement
// them without importing this package.
//
// The comparison is exhaustive. Addresses are divided into peers and ports into
// classes until none of the sides can tell two members apart; one member of each
// is asked about for every endpoint and direction. Rows that are known to be
// equal are compared once.
//
// It takes values and changes none, and it prints nothing.
package cells
