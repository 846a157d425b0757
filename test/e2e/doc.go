// SPDX-License-Identifier: Apache-2.0

// Command e2e runs a real Kubernetes cluster on this machine, installs Isthmus with its released image and
// manifest, and runs the end-to-end tests of Kubernetes and a few more. Control plane and nodes are network
// namespaces on a bridge; each node has containerd, kubelet and kube-proxy in separate namespaces. For one case
// a Windows node joins, under Wine over an emulated HNS, whose kubelet and container runtime this program plays.
// It writes a report for JUnit and ends with one line of totals.
//
// As "e2e cluster up" and "e2e cluster stop" it leaves a cluster running in the
// background instead, for make cluster.
//
// All its processes end with it. It restores the settings that kubelets change for the whole machine, and the
// controllers of cgroup v2. Nothing limits the nodes' resources.
package main
