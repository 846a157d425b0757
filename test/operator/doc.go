// SPDX-License-Identifier: Apache-2.0

// Package operator breaks a running cluster as users and other programs do, and checks that one command of
// isthmusctl names the cause and the remedy of each breakage. It also compares what a Bundle says with what
// its node says, on both systems.
//
// It does not test repairs: the tests of the audit do.
package operator
