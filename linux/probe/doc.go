// SPDX-License-Identifier: Apache-2.0

// Package probe runs single flows through the real programs. It lays out a State in private
// maps, builds the first packet of a flow, and runs it through the kernel by BPF_PROG_TEST_RUN.
// Tests and isthmusctl compare the verdicts with the reference.
//
// It attaches nothing and sees no traffic.
package probe
