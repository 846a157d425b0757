// SPDX-License-Identifier: Apache-2.0

// Package denylist lays deny sets out in the maps that bpf/xdp.bpf.c reads:
// single addresses, prefixes, and a sieve that says of whole regions of
// addresses that nothing in them is listed. It works out which writes lead from
// one set to another, in an order in which what both sets deny is denied
// throughout and what neither denies is not.
//
// It is pure and builds on any OS. It does not touch a map: linux/xdp does.
package denylist
