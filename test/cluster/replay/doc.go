// SPDX-License-Identifier: Apache-2.0

// Package replay plays the cases of test/corpus on a cluster of test/cluster: a case brings its pods and
// policies, its addresses become those of the cluster, and every flow is compared with the reference evaluator.
//
// It makes no cluster.
package replay
