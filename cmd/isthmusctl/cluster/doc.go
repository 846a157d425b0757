// SPDX-License-Identifier: Apache-2.0

// Package cluster reads the cluster that a command of isthmusctl examines: from a
// directory of manifests or from an API server. It completes manifests with the
// nodes and addresses that a running cluster would add, and says so. It also reads
// the flags that name a flow.
//
// It answers no query about policies.
package cluster
