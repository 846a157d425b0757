// SPDX-License-Identifier: Apache-2.0

// Command winnode is the agent of a Windows node on any system: the real agent
// and the real Windows backend over an HNS that lives in this process, keeps
// state and decides packets as the programmed ACLs say, and moves none. The
// socket given by --control stands for Windows, and is that of test/hnsemu: it
// makes HCN namespaces as a container runtime does, decides packets, and dumps
// what HNS holds.
//
// What it shows of Windows is what the in-process HNS knows of it, no more.
package main
