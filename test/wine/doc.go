// SPDX-License-Identifier: Apache-2.0

// Package wine runs the executables for Windows on Linux, under Wine. They have a
// prefix and a network namespace of their own. DLLs forward their calls of HNS to
// an emulator (test/hnsemu).
//
// A Machine is one Windows node: it starts the emulator and isthmus-agent.exe,
// calls isthmus-cni.exe as a container runtime does, and runs any other
// executable. Its tests also run hcsshim's own against the emulator, and other CNI
// plugins (plugins/go.mod, sdnbridge/go.mod) on the agent's networks and in chains
// with isthmus-cni.exe.
//
// It proves that the executables work together, on an HNS with the publicly known behaviour. It proves nothing
// about Windows itself.
package wine
