// SPDX-License-Identifier: Apache-2.0

// Package test holds the rules of the house as tests: which package may import
// which, what every file and package must say about itself. Its directories are
// the corpus, clusters on one machine, and other tests that belong to no single
// package.
package test
