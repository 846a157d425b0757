// SPDX-License-Identifier: Apache-2.0

// Package cniframe is the protocol between the CNI plugin and the agent: one connection, one request, one
// answer. Each is a Frame: a header of fixed size and a message in JSON. The plugin is a new process per
// call, so this package needs only the standard library and loads quickly (ADR 33).
//
// The plugin and the agent may differ in version while a node is upgraded. A message keeps its fields: new
// ones are optional, and the other side ignores fields that it does not know.
//
// It opens no connection and executes no request: common/agent/socket and common/agent/server do.
package cniframe
