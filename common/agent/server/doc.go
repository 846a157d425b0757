// SPDX-License-Identifier: Apache-2.0

// Package server serves an agent to its local clients, each on a socket of its own (ADR 52): requests of the
// CNI plugin in frames (common/api/cniframe), and inspection by isthmusctl over gRPC (common/api/isthmus/v1).
//
// It decodes, encodes, bounds and cuts off. It decides nothing: common/agent executes each request. It does
// not open the sockets: common/agent/socket does.
package server
