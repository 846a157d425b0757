// SPDX-License-Identifier: Apache-2.0

// Package model holds the nouns of Isthmus: what Kubernetes objects are reduced to (Pod, Namespace, Node,
// Policy), what policy is evaluated for (Flow), and what one node should enforce (State and its Tables).
//
// Everything here is a value. It is built once and then only read, so goroutines may share it without
// locks. All addresses are netip values; IPv4 is never held in its IPv6-mapped form.
//
// It does not decide anything: package policy does. It imports only the standard library and package
// immutable.
package model
