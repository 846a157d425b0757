// SPDX-License-Identifier: Apache-2.0

// Package kube holds Source, from which the agent receives the objects of a cluster. The packages below it
// are the only ones that know Kubernetes types, and none of them leaves it:
//
//   - convert: the table of kinds, and how each becomes a noun of package model
//   - manifests: text, files and a watched directory
//   - watch: an API server
//   - writeback: conditions, events and annotations that nodes write
//   - nodecidr: pod ranges of nodes
//   - kubetest: a follower of a Source, for tests
//
// It does not decide what a policy means.
package kube
