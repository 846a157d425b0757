// SPDX-License-Identifier: Apache-2.0

// Package world makes random small clusters and lists the flows in them that
// could tell two implementations of policy apart. Scale makes the manifests of
// large ones.
//
// It compares nothing itself: tests of policy, linux/policymap, windows/acl and
// the data paths do.
package world
