// SPDX-License-Identifier: Apache-2.0

// Package linux enforces States with eBPF. It owns, in the kernel: the maps and
// links pinned under its bpffs directory; veth pairs whose names start with
// "ist" and whose alias is "isthmus:" and the endpoint's id, and their
// classifiers named "isthmus"; the tables "isthmus-egress" of nftables; the mark
// of packets from pods, but for bits 14 and 15; routes to pods; the sysctls of
// those interfaces; and what package fabric owns.
//
// Sub-packages: policymap decides how a State is laid out in maps (pure),
// bpfobj is the compiled programs, loader loads and pins them, link makes
// interfaces and rules, fabric the ways to other nodes.
//
// It does not decide what is allowed: the State says it.
package linux
