// SPDX-License-Identifier: Apache-2.0

// Command conformance checks on a Windows node the assumptions of Isthmus about HNS (docs/windows.md). It writes
// the ACLs of every case of the corpus to HNS, reads them back, and evaluates them: they must give the verdicts
// of the case under every reading. Between two pods it also sends packets. It uses an existing network, and
// creates an endpoint and sets, which it removes. It restores the policies of the pods.
//
// It writes a report to send back. It does not check Isthmus itself, and makes no network, namespace or load
// balancer.
package main
