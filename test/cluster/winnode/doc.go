// SPDX-License-Identifier: Apache-2.0

// Command winnode is an emulated Windows node: the real agent and the real
// Windows backend over HNS of test/hnsemu/host in this process, which moves
// packets between network namespaces. It runs in the node's namespace and ends
// with everything that it made. The socket given by --control stands for Windows:
// it makes HCN namespaces as a container runtime does (/namespace?netns=FILE),
// which isthmus-cni for Linux is then given by their GUIDs, and dumps what HNS
// holds.
//
// What it shows of Windows is what the emulated HNS knows of it, no more.
package main
