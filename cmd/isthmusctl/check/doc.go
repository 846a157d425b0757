// SPDX-License-Identifier: Apache-2.0

// Package check holds the commands that check policies before a cluster has them:
// test runs unit tests of policies, and verify compares every representation of
// the policies of a cluster.
//
// The engines of common/analysis and of both backends decide. This package reads
// the files of tests, compares, and prints. It does not contact an agent.
package check
