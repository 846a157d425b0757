// SPDX-License-Identifier: Apache-2.0

// Package apiserver runs a real API server for tests: etcd and kube-apiserver as
// processes on data in memory, with RBAC and the definitions of the cluster-wide
// policies, ready in a few seconds. It can be halted, killed and started again
// on the same data. There are no controllers: tests make the objects that
// controllers would make, pods with their addresses among them.
//
// Its own tests are those of whatever talks to the API server: reading, writing
// status back, the commands, what happens while it is away, and Services, which
// the real kube-proxy translates on two nodes, on Windows under Wine (test/wine).
//
// It is no cluster: nothing runs pods.
package apiserver
