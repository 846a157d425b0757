// SPDX-License-Identifier: Apache-2.0

// Package takeover plans how a Windows node comes from the HNS network of another program to an agent of mode full. Make
// reads HNS and compares the network with what the agent needs, by the code with which package windows judges it at the
// start of an agent. A Plan names the differences, the endpoints of pods, and the steps of the administrator.
//
// It changes nothing, and moves no pods: the node is drained.
package takeover
