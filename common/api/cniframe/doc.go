// SPDX-License-Identifier: Apache-2.0

// Package cnicall is the protocol between the CNI plugin and the agent: one connection, one request, one
// answer. Each is a Frame: a header of fixed size and a message in JSON. The JSON follows the protobuf
// mapping of the messages in common/cniapi/isthmus.proto. The plugin is a new process per call, so this
// package needs only the standard library and loads quickly (ADR 33).
//
// It opens no connection and executes no request: common/agent/socket and common/agent do.
package cnicall
