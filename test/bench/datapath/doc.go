// SPDX-License-Identifier: Apache-2.0

// Command datapath measures the programs of the Linux data path by
// BPF_PROG_TEST_RUN against the least that such programs have to do, in the
// same run, and prints a table and one JSON object a line. It needs root and
// attaches nothing.
package main
