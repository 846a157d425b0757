// SPDX-License-Identifier: Apache-2.0

// Command conformance checks on a Windows node what Isthmus assumes of HNS
// (docs/windows.md). It writes the ACLs of every case of the corpus to HNS, reads
// them back, and evaluates them: they must give the verdicts of the case under every
// reading. Between two pods it also sends packets. It uses an existing network, with
// an endpoint and sets of its own, which it removes. It restores the policies of the
// pods.
//
// It writes a report to send back. It does not look at Isthmus itself, and makes
// no network, namespace or load balancer.
package main
