// SPDX-License-Identifier: Apache-2.0

// Package connectivity tests a cluster with pods of its own: a client and a server on each chosen node. Plans say which
// pods, policies and flows there are, and whether a flow must be answered or blocked; they are values. Run carries a plan
// out on a Cluster, judges every flow, and removes everything also when it is interrupted.
//
// It knows neither Kubernetes nor why a flow fails.
package connectivity
