// SPDX-License-Identifier: Apache-2.0

// Package testrun runs a BPF program on a frame and a context by BPF_PROG_TEST_RUN, with
// less overhead than cilium/ebpf.
//
// It loads no program and judges no result.
package testrun
