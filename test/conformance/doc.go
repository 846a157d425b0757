// SPDX-License-Identifier: Apache-2.0

// Command conformance asks the HNS of a Windows node what Isthmus assumes of it
// (docs/windows.md), and writes what every case of the corpus becomes to it: HNS
// must take it and hold it, and what it holds must give the verdicts of the case
// under every reading. Between two pods it also sends packets. It uses a network
// that exists, with an endpoint of its own and sets, which it removes, and leaves
// the pods' policies as they were.
//
// It writes a report to send back. It does not look at Isthmus itself, and makes
// no network, namespace or load balancer.
package main
