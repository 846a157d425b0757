// SPDX-License-Identifier: Apache-2.0

// Package netfilter tells a kernel without nf_tables from other failures of the nftables library. On such a
// kernel there are no tables, so there is nothing to find or to remove.
//
// It neither reads nor writes rules.
package netfilter
