// SPDX-License-Identifier: Apache-2.0

// Package engine decides flows of a whole cluster by several independent engines,
// so that their verdicts can be compared. The engines are the reference evaluator, the
// compiled tables, and implementations of one node (Node): entries of BPF maps, the
// BPF programs themselves, and HNS ACLs.
//
// A flow is decided at both of its ends, each on the node of its pod. A Node is an
// interface that uses only the types of common/model and the standard library, so that the packages under
// linux/ and windows/ implement it without importing this one.
//
// The package compares nothing and prints nothing.
package engine
