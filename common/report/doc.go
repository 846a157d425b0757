// SPDX-License-Identifier: Apache-2.0

// Package report works out what a node says back to the cluster about policies
// that it does not enforce exactly, and about itself: conditions and events, as
// values. Many nodes would say the same. Decide settles for each of them, from
// what all can read, who writes a condition and who takes it back.
//
// It does not talk to the API server; package kube does.
package report
