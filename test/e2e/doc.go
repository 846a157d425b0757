// SPDX-License-Identifier: Apache-2.0

// Command e2e runs a real Kubernetes cluster on this machine, installs Isthmus
// on it by its own image and manifest, and runs Kubernetes' own end-to-end tests
// and a few more. Control plane and nodes are network namespaces on a bridge;
// a node has containerd, kubelet and kube-proxy in namespaces of its own. For one
// case an emulated Windows node joins (test/cluster/winnode), whose kubelet and
// container runtime this program plays. It writes a report for JUnit and ends
// with one line of totals.
//
// As "e2e cluster up" and "e2e cluster stop" it leaves a cluster running in the
// background instead, for make cluster.
//
// What it starts ends with it. What kubelets change for the whole machine is
// put back. It needs cgroup v1, because nothing limits the nodes' resources.
package main
