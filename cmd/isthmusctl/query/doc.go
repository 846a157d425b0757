// SPDX-License-Identifier: Apache-2.0

// Package query holds the commands that answer queries about the policies of a
// cluster: compile, explain, matrix, diff and lint. The cluster is a directory of
// manifests or an API server.
//
// The packages of common/analysis find the answers. This package reads flags, and
// prints. It does not contact an agent.
package query
