// SPDX-License-Identifier: Apache-2.0

// Package xdp puts the program of bpf/xdp.bpf.c on uplinks: by pinned links, in
// the driver where that can, else in the kernel's generic hook. A program that
// somebody else attached is never replaced. It makes the map writes that
// linux/denylist has worked out.
//
// Links are pinned under xdp/ in the bpffs directory, for all versions of the
// layout; maps are beside those of the pods. Both work on while no agent runs.
//
// It does not know which addresses are denied, nor which devices are uplinks.
package xdp
