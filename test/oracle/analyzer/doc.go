// SPDX-License-Identifier: Apache-2.0

// Command analyzer evaluates flows with np-guard's netpol-analyzer. It reads one case per line
// from its standard input, as JSON, and writes one line of verdicts for each.
//
// It is a separate module and process: the analyzer needs an older
// sigs.k8s.io/network-policy-api than the other oracles. It compares nothing.
package main
