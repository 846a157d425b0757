// SPDX-License-Identifier: Apache-2.0

// Package engine decides flows of a whole cluster by several independent means,
// so that they can be compared: the reference evaluator, compiled tables, and
// whatever can stand for one node (Node): entries of BPF maps, the BPF programs
// themselves, HNS ACLs.
//
// A flow is decided at both of its ends, each on the node of its pod. A Node is an
// interface of nouns and the standard library only, so that the packages under
// linux/ and windows/ implement it without importing this one.
//
// The package compares nothing and prints nothing.
package engine
