// SPDX-License-Identifier: Apache-2.0

// Package denymap lays out deny sets in the maps that bpf/xdp.bpf.c reads: single addresses,
// prefixes, and a prefilter that rules out whole regions of addresses. It computes the writes
// from one set to another. During the writes, addresses that both sets deny stay denied, and
// addresses that neither denies pass.
//
// It is pure and builds on any OS. It does not touch a map: linux/xdp does.
package denymap
