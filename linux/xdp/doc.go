// SPDX-License-Identifier: Apache-2.0

// Package xdp attaches the program of bpf/xdp.bpf.c to uplinks by pinned links. It uses the
// driver if that supports XDP, otherwise the generic hook of the kernel. It never replaces a
// program of another owner. It makes the map writes that linux/denymap computes.
//
// Links are pinned under xdp/ in the bpffs directory, for all layout versions; maps are beside
// those of the pods. Both stay in force while no agent runs.
//
// It does not know which addresses are denied, nor which devices are uplinks.
package xdp
