// SPDX-License-Identifier: Apache-2.0

// Package doctor looks at a node for what keeps Isthmus from working there, or
// from enforcing what it should: a kernel or an update that is not enough, what
// other networks have left, ports that are taken, settings of kube-proxy.
//
// It changes nothing, and needs no agent; what needs the API server's word is
// passed in.
package doctor
