// SPDX-License-Identifier: Apache-2.0

// Package report computes what a node reports to the cluster: conditions and events about policies that it
// does not enforce exactly, and about itself. Many nodes may have the same report. Decide determines, from
// the state that all nodes read, which one writes a condition and which one clears it.
//
// It does not talk to the API server; package kube does.
package report
