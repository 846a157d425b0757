// SPDX-License-Identifier: Apache-2.0

// Package replay runs the cases of test/corpus on a cluster of test/cluster. It attaches the
// pods of a case, applies its policies with the addresses of the cluster, and compares every
// flow with the reference evaluator.
//
// It makes no cluster.
package replay
