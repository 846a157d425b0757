// SPDX-License-Identifier: Apache-2.0

// Package apiserver runs a real API server for tests: etcd and kube-apiserver as processes on data in memory,
// with RBAC and the CRDs of cluster-wide policies. It is ready in a few seconds. It can be halted, killed and
// started again on the same data. There are no controllers: tests make the objects that controllers would make,
// pods with their addresses among them.
//
// Its own tests are those of all clients of the API server: reading, writing
// status, the commands, and outages. They also cover Services, which the real
// kube-proxy implements on two nodes, for Windows under Wine (test/wine).
//
// It is not a cluster: nothing runs pods.
package apiserver
