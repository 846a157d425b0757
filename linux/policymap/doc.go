// SPDX-License-Identifier: Apache-2.0

// Package policymap lays States out in the maps that the programs of bpf/
// read: which numbers tables and rows get, which entries have to be written to
// come from one State to the next and in which order, what maps that are found
// mean, and how flows come from an older layout. Entries.Lookup reads them as the
// programs do.
//
// It is pure and builds on any OS. It does not touch a map: linux/loader does.
package policymap
