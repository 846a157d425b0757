// SPDX-License-Identifier: Apache-2.0

// Package cni is the CNI plugin (specification 1.1): it checks what the runtime
// asks, forwards it to the agent and prints the answer in the version that was
// asked for. What Isthmus cannot do is refused with a reason, never ignored.
//
// It keeps nothing, touches no interface and needs milliseconds: all work, and
// all undoing of work, is the agent's.
package cni
