// SPDX-License-Identifier: Apache-2.0

// Command demo shows Isthmus at work on one machine: two Linux nodes and a
// Windows node take Kubernetes manifests, wire pods through the CNI plugin and
// enforce the policies. It tries every flow, compares each verdict with the
// reference evaluator, and changes a policy and a label while a connection is
// open. It removes everything it made, also after Ctrl-C.
package main
