// SPDX-License-Identifier: Apache-2.0

// Package reference is a slow and simple model of the packet path of a Linux node: it decides which packets pass.
// It models each program separately, as the decisions in docs/adr describe it. Packets are Go values, not bytes.
// It uses the standard library only: it shares no code with the programs, the layout of their maps, or the policy
// compiler.
//
// It does not parse, encode, run or generate packets.
package reference
