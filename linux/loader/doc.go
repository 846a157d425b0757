// SPDX-License-Identifier: Apache-2.0

// Package loader loads the programs of bpf/ into the kernel and pins them and their maps under
// one bpffs directory. It attaches them to interfaces, and makes the map writes that
// linux/policymap computes.
//
// The layout version names the directory. Links are pinned next to the maps, so enforcement
// continues while no agent runs. A new agent replaces the programs in place; linux/migrate copies
// the data of an older layout.
//
// It decides nothing: neither what is allowed nor what an entry means.
package loader
