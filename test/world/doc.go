// SPDX-License-Identifier: Apache-2.0

// Package world makes random small clusters, and lists the flows in them that could
// distinguish two implementations of policy. Scale makes the manifests of large clusters.
//
// It compares nothing: tests of policy, linux/policymap, windows/acl and the data paths do.
package world
