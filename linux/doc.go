// SPDX-License-Identifier: Apache-2.0

// Package linux enforces States with eBPF. Its Backend is the policy core. It owns the maps and
// links pinned under its bpffs directory, and veth pairs whose names start with "ist" and whose
// alias is "isthmus:" and the endpoint's ID. It owns their classifiers named "isthmus", their
// sysctls, the routes to pods, and the mark of packets from pods, except bits 14 and 15.
//
// Every other feature is a component with a package and objects of its own: kubeproxy, fabric,
// fastpath, sources, denylist, hostport. In policy mode another CNI plugin makes the interfaces,
// and foreign finds them. Further sub-packages: policymap and denymap lay out maps (pure), bpfobj
// holds the compiled programs, loader and xdp load and pin them, migrate copies flows of an older
// map layout, link creates interfaces, bandwidth limits them. takeover moves a node from the
// bridge of another network.
//
// It does not decide what is allowed: the State does.
package linux
