// SPDX-License-Identifier: Apache-2.0

// Package events interprets the flow events of the programs. A Record is what a program wrote.
// A History knows the endpoint and the table of each slot over time, and turns a Record into a
// model.FlowEvent with pod and cause.
//
// Records are read late, when the maps may hold other policies. Epochs identify the policy,
// because none is reused; so do table numbers, which stand for the same rules while in use. A
// record is only explained by a State in which its slot had its epoch, or at least its table.
// If no such State is known, the event names no policy.
//
// It does not read the ring: linux/loader does.
package events
