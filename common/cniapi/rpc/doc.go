// SPDX-License-Identifier: Apache-2.0

// Package rpc is the two services of the agent's local interface as gRPC: that
// of the CNI plugin and that of isthmusctl. They are generated from
// services.proto by make gen, apart from the messages, so that the plugin starts
// without gRPC's library: cni/unary makes its calls.
//
// It implements neither side.
package rpc
