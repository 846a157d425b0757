// SPDX-License-Identifier: Apache-2.0

// Package loader puts the programs of bpf/ into the kernel, keeps them and
// their maps pinned under one bpffs directory, attaches them to interfaces and
// makes the map writes that linux/policymap has worked out.
//
// The directory is named by the version of the layout. Links are pinned beside
// the maps, so that enforcement goes on while no agent runs; a new agent replaces
// the programs in place, and takes over what an older layout left.
//
// It decides nothing: not what is allowed, not what an entry means.
package loader
