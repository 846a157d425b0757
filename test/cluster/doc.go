// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a cluster on one machine. Every node is a network namespace on a common bridge, with an
// agent process of its own. Every pod is a namespace that the real CNI plugin attaches through libcni. The
// package acts as kubelet and scheduler, and opens real connections between pods.
//
// Windows nodes have the real agent over an emulated HNS that moves packets
// (test/cluster/winnode), on a bridged or on an overlay network; under Wine the
// executables for Windows (test/wine).
//
// It is for demonstrations and tests; it is not how Isthmus is installed.
package cluster
