// SPDX-License-Identifier: Apache-2.0

// Command smoke runs the executables of Isthmus on one Windows host: it creates namespaces of HCN as a container
// runtime does, starts the agent on manifests, and attaches pods through the CNI plugin. It runs
// isthmus-conformance between two of them, restarts the agent, measures ADD at several degrees of concurrency,
// and removes everything. The last line and a JSON file report the results, also when a step failed.
//
// It needs no cluster and no container runtime. It runs no containers.
package main
