// SPDX-License-Identifier: Apache-2.0

// Package cniapi is the messages of the agent's local interface, which the CNI
// plugin calls and isthmusctl reads, as gRPC over a socket that only root may
// open (a named pipe for administrators on Windows). Its services are in rpc.
//
// The messages are generated from isthmus.proto by make gen. It implements
// neither side: cni calls, common/agent answers.
package cniapi
