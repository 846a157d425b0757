// SPDX-License-Identifier: Apache-2.0

// Package kubetest runs a kube.Source in a test, and waits for what it publishes and reports.
//
// An ExecServer lists nodes and pods and runs commands in them.
//
// The product does not import it. It provides no whole API server.
package kubetest
