// SPDX-License-Identifier: Apache-2.0

// Package agents finds the agent of each node of a cluster, and runs isthmusctl in its pod through the API server, as kubectl
// exec does. So a user needs the right to exec in these pods, and agents need no port for it.
//
// It does not know what isthmusctl prints.
package agents
