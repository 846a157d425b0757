// SPDX-License-Identifier: Apache-2.0

// Package linux enforces States with eBPF. It owns, in the kernel: the maps
// and links pinned under its bpffs directory; the veth pairs whose names start
// with "ist" and whose alias is "isthmus:" and the endpoint's id, and their
// classifiers named "isthmus"; the routes to them and to other nodes' pods,
// marked with its protocol number; and the sysctls of those interfaces.
//
// Sub-packages: policymap decides how a State is laid out in maps (pure),
// bpfobj is the compiled programs, loader loads and pins them, link makes
// interfaces and routes.
//
// It does not decide what is allowed: the State says it.
package linux
