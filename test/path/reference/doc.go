// SPDX-License-Identifier: Apache-2.0

// Package reference is a slow and obvious statement of what the packet path of a
// Linux node lets through. It follows the decisions in docs/adr, one program at a
// time, on packets that are values and not bytes. It uses the standard library only:
// it shares no code with the programs, with the layout of their maps, or with the
// compiler of policies.
//
// It does not parse, encode, run or generate packets.
package reference
