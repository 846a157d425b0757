// SPDX-License-Identifier: Apache-2.0

// Package agent runs a node: it takes snapshots of the cluster and requests of
// the CNI plugin, and keeps the data path as package compile says.
//
// One goroutine, the loop, owns the records, the addresses and the Backend.
// Everybody else sends it a function or reads the view that it publishes. A pod
// is answered for only when its policy is in force; whatever fails before that
// is undone. What is in force stays in force while the agent is down, and until
// the first snapshot after a start.
//
// It does not watch the cluster (common/kube does), decide policy
// (common/policy does) or know an operating system (a Backend does).
package agent
