// SPDX-License-Identifier: Apache-2.0

// Package podexec runs a command in a container through the API server, as kubectl exec does: over a WebSocket, or SPDY
// if the server is older. Its output is bounded.
//
// It does not know what runs.
package podexec
