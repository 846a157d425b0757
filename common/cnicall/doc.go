// SPDX-License-Identifier: Apache-2.0

// Package cnicall is how the CNI plugin asks the agent: one connection, one
// request, one answer. Either is a Frame: a header of fixed size and a message
// in JSON, as the JSON mapping of the messages in common/cniapi/isthmus.proto
// has it. The plugin is a process per call, so this needs the standard library
// and nothing that takes long to load (ADR 33).
//
// It opens no connection and carries out no request: common/agent/socket and
// common/agent do.
package cnicall
