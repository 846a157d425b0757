// SPDX-License-Identifier: Apache-2.0

// Package kubeproxy makes kube-proxy and policy agree: egress to a Service is decided after kube-proxy has
// chosen the pod, by programs on the netfilter hooks. On kernels before Linux 6.4 an nftables rule calls
// the programs. The package owns the nftables tables "isthmus-egress" and checks them every second.
//
// It is a dataplane.Component without a section of the State. It does not balance Services, and does not
// decide which destinations are allowed: the programs do.
package kubeproxy
