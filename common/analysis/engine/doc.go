// SPDX-License-Identifier: Apache-2.0

// Package engine decides flows of a whole cluster by every means that Isthmus
// has, so that they can be compared: the reference evaluator, compiled tables,
// the entries of the BPF maps, the real BPF programs, and HNS ACLs under every
// version and reading of HNS.
//
// A flow is decided at both of its ends, each on the node of its pod. The
// package compares nothing and prints nothing.
package engine
