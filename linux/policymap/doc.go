// SPDX-License-Identifier: Apache-2.0

// Package policymap lays out States in the maps that the programs of bpf/ read. It assigns
// numbers to tables and rows, computes the ordered writes from one State to the next, decodes
// present maps, and converts flows of an older layout. Entries.Lookup evaluates the maps as the
// programs do.
//
// It is pure and builds on any OS. It does not touch a map: linux/loader does.
package policymap
