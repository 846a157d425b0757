// SPDX-License-Identifier: Apache-2.0

// Command datapath measures the Linux data path, and reference points in the same run.
// It runs the programs by BPF_PROG_TEST_RUN, and compares them with minimal programs
// for the same task, for growing numbers of policies and peers. It compares the path
// between two pods of a node with a plain veth pair, routing without policy, a
// bare bpf_redirect_peer, and nftables with the same policies. It prints a table or
// JSON lines and draws an SVG.
//
// Between pods of two nodes it measures the fast path and the host stack. On interfaces as other
// CNI plugins make them, it compares policy with no policy, with nftables, and with the
// program of kube-network-policies.
//
// It needs root, makes namespaces of its own and removes them. It does not
// measure network cards.
package main
