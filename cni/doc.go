// SPDX-License-Identifier: Apache-2.0

// Package cni is the CNI plugin (specification 1.1). It validates the runtime's request, forwards it to the
// agent and prints the answer in the requested version. It refuses unsupported requests with a reason and
// never ignores them.
//
// It keeps no state, touches no interface and needs milliseconds: the agent does all work and all rollback.
package cni
