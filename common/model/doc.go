// SPDX-License-Identifier: Apache-2.0

// Package model holds the nouns of Isthmus: what the Kubernetes objects are
// reduced to (Pod, Namespace, Node, Policy), what is asked about them (Flow),
// and what one node should enforce (State and its Tables).
//
// Everything here is a value: built once, then only read, so it may be shared
// between goroutines without locks. All addresses are netip values; IPv4 is
// never held in its IPv6-mapped form.
//
// It does not decide anything: package policy does. It imports only the
// standard library.
package model
