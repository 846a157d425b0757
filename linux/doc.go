// SPDX-License-Identifier: Apache-2.0

// Package linux enforces States with eBPF. It owns these objects of the kernel: the maps and
// links pinned under its bpffs directory; veth pairs whose names start with "ist" and whose
// alias is "isthmus:" and the endpoint's ID. It also owns their classifiers named "isthmus",
// the nftables tables "isthmus-egress", and the mark of packets from pods, except bits 14 and
// 15. It owns the routes to pods, the sysctls of those interfaces, and what package fabric
// owns.
//
// Sub-packages: policymap lays out a State in maps (pure), bpfobj holds the compiled programs,
// loader loads and pins them. link creates interfaces and rules, fabric the node routes.
//
// It does not decide what is allowed: the State does.
package linux
