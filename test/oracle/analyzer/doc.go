// SPDX-License-Identifier: Apache-2.0

// Command analyzer answers questions about flows with np-guard's
// netpol-analyzer. It reads one case a line from its standard input, JSON, and
// writes one line of answers for each.
//
// It is a module and a process of its own: the analyzer needs an older
// sigs.k8s.io/network-policy-api than the other oracles. It compares nothing.
package main
