// SPDX-License-Identifier: Apache-2.0

// Package cells compares all representations of the policy of a node: the reference
// evaluator, the compiled tables, the entries of the BPF maps, and the HNS ACLs of
// every profile under every reading. Maps and Lists are interfaces over the types of
// common/model; linux/policymap/mapsim and windows/acl/aclsim implement them without
// importing this package.
//
// The comparison is exhaustive. It divides addresses into peers and ports into
// classes until no side can distinguish two members. It then evaluates one member of
// each for every endpoint and direction. It compares rows that are known to be equal
// only once.
//
// The package does not modify its inputs and prints nothing.
package cells
