// SPDX-License-Identifier: Apache-2.0

// Package engines finds network policy engines of other projects on a node, by the tables, chains, interfaces
// and pinned programs that they make. Two engines deny what either denies, and neither explains the verdicts of the other.
//
// It does not see rules of iptables-legacy, and it removes nothing.
package engines
