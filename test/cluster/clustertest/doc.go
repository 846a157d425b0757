// SPDX-License-Identifier: Apache-2.0

// Package clustertest sets up a cluster of test/cluster for a test: it builds the commands once for all tests of a
// package, starts the nodes, and attaches the pods of manifests.
//
// It checks nothing about the product.
package clustertest
