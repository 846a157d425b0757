// SPDX-License-Identifier: Apache-2.0

// Package agent runs a node. It takes cluster snapshots and CNI requests, and keeps the data path in the
// state that compile.Once computes.
//
// One goroutine, the loop, owns the records, the addresses and the Backend. Other goroutines send it
// functions or read the view that it publishes. An ADD succeeds only when the pod's policy is in force;
// after a failure the agent rolls back. Policy stays in force while the agent is down, and until the first
// snapshot after a start.
//
// It does not watch the cluster (common/kube does), decide policy (common/policy does), know an operating
// system (a Backend does) or serve sockets (common/agent/server does).
package agent
