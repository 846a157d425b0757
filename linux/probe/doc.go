// SPDX-License-Identifier: Apache-2.0

// Package probe asks the real programs about single flows: it lays a State out
// in maps of its own, makes the first packet of a flow and runs it through the
// kernel by BPF_PROG_TEST_RUN. Tests and isthmusctl compare the answers with
// the reference.
//
// It attaches nothing and sees no traffic.
package probe
