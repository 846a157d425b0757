// SPDX-License-Identifier: Apache-2.0

// Package clitest runs commands of isthmusctl for their tests, writes the files
// that they read, compares what they print with golden files, and measures how
// their cost grows with the cluster.
//
// Only tests import it.
package clitest
