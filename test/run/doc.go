// SPDX-License-Identifier: Apache-2.0

// Command run runs a suite of tests: which packages, with which flags and
// environment, and in which order. The table in suites.go holds every suite; make
// calls this command for each of them.
//
// Suites whose table entry asks for a summary run under gotestsum. It prints a line
// for each package, then skipped and failed tests with their output. The slowest
// tests and one line of totals follow.
//
// It does not install what tests need; make and .ci do.
package main
