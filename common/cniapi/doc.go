// SPDX-License-Identifier: Apache-2.0

// Package cniapi is the local interface of the agent: the service that the CNI
// plugin calls and the one that isthmusctl reads, as gRPC over a socket that
// only root may open (a named pipe for administrators on Windows).
//
// The messages are generated from isthmus.proto by make gen. It implements
// neither side: cni calls, common/agent answers.
package cniapi
