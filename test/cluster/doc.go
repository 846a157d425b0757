// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a cluster on one machine: every node is a network
// namespace on a common bridge with an agent process of its own, every pod a
// namespace wired by the real CNI plugin through libcni. It plays the kubelet
// and the scheduler, and sends real connections between pods.
//
// The Windows node has a real agent over an HNS that keeps state and decides
// packets but moves none; its namespace answers and sends in the name of its
// pods, so that the Linux half of every flow is a real connection.
//
// It is for demonstrations and tests; it is not how Isthmus is installed.
package cluster
