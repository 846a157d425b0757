// SPDX-License-Identifier: Apache-2.0

// Package cniapi is the local interface of the agent: the service that is behind
// the CNI plugin and the one that isthmusctl reads, as gRPC over a socket that
// only root may open (a named pipe for administrators on Windows). Plugins of
// older versions call the first; those of this one send the same messages in a
// frame of common/cnicall.
//
// The messages are generated from isthmus.proto by make gen. It implements
// neither side: common/agent answers.
package cniapi
