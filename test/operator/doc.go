// SPDX-License-Identifier: Apache-2.0

// Package operator breaks a running cluster as users and other programs do, and checks that
// one command of isthmusctl names the cause and the remedy of each breakage. It also compares
// the content of a Bundle with the state of its node, on both systems.
//
// It does not test repairs: the tests of the audit do.
package operator
