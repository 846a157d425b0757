// SPDX-License-Identifier: Apache-2.0

// Package observe keeps the last flow events of a node and sends new ones to followers. A Flow is an event of
// the data path, with the name of the remote end. A Filter selects flows by pod and outcome.
//
// Flows stay typed. Text and wire formats are made at the edge: the log in this package, gRPC in
// common/agent/server, lines and JSON in cmd/isthmusctl/node.
//
// It reads no data path and serves no client: common/agent and common/agent/server do.
package observe
