// SPDX-License-Identifier: Apache-2.0

// Command hnsemu is the Host Networking Service of one emulated Windows node.
// The DLLs in dll/, built for Windows, forward to it what programs under Wine
// ask of computenetwork.dll and vmcompute.dll; --listen is where.
//
// It answers as HNS of the given version does, keeps its objects in a file, and
// logs every call. By the socket of --control a test creates namespaces as a
// container runtime does, injects faults, and restarts it. On Linux, as root, it
// moves packets between endpoints whose namespaces stand for network namespaces.
//
// It is not Windows. What it does where HNS is not documented is a choice.
package main
