// SPDX-License-Identifier: Apache-2.0

// Package connectivity has the command that tests the pods' network of a cluster with pods of its own, and the hidden
// command that runs in them.
//
// What is tested, and what a healthy cluster answers, is in common/connectivity.
package connectivity
