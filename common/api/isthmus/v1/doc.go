// SPDX-License-Identifier: Apache-2.0

// Package isthmusv1 is the gRPC interface that isthmusctl uses to inspect an agent: service Inspect. It is
// served on a socket that only root may open (a named pipe for administrators on Windows).
//
// The code is generated from inspect.proto by make gen. The package implements neither side: common/agent/server
// is the server.
package isthmusv1
