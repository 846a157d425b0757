// SPDX-License-Identifier: Apache-2.0

// Package cniapi is the local gRPC interface of the agent: service CNI for the CNI plugin and service
// Inspect for isthmusctl. It runs over a socket that only root may open (a named pipe for administrators on
// Windows). Only older plugins call service CNI over gRPC. This version sends the same messages in frames
// of common/cnicall.
//
// The code is generated from isthmus.proto by make gen. The package implements neither side: common/agent
// is the server.
package cniapi
