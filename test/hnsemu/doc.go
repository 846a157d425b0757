// SPDX-License-Identifier: Apache-2.0

// Command hnsemu is the Host Networking Service of one emulated Windows node.
// The DLLs in dll/, built for Windows, forward to it what programs under Wine
// ask of computenetwork.dll and vmcompute.dll; --listen is where.
//
// It answers as HNS of the given version does, keeps what it holds in a file,
// logs every call, and does what the socket given by --control asks: namespaces
// as a container runtime makes them, faults, restarts. Endpoints in namespaces
// that a network namespace stands for are moved packets for (Linux, root).
//
// It is not Windows. What it does where HNS is not documented is a choice.
package main
