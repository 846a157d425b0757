// SPDX-License-Identifier: Apache-2.0

// Package kubetest runs a kube.Source in a test, and waits for what it publishes and reports.
//
// The product does not import it. It provides no API server.
package kubetest
