// SPDX-License-Identifier: Apache-2.0

// Command hnsemu is the Host Networking Service of one emulated Windows node.
// The DLLs in dll/, built for Windows, forward calls of programs under Wine to
// computenetwork.dll and vmcompute.dll to its socket --listen.
//
// It answers as HNS of the given version does, keeps its objects in a file, and
// logs every call. Through the socket --control a test creates namespaces as a
// container runtime does, injects faults, and restarts the service. On Linux, as root, it
// moves packets between endpoints: a network namespace represents each HCN namespace.
//
// It is not Windows. Where HNS is not documented, its behaviour is an assumption.
package main
