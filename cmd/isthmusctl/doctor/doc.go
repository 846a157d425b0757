// SPDX-License-Identifier: Apache-2.0

// Package doctor checks a node for problems that keep Isthmus from working or from
// enforcing policies: an unsuitable kernel or update, remains of other networks,
// ports in use, settings of kube-proxy. It also checks for clouds that drop foreign
// source addresses, and for Windows hosts that do not forward.
//
// It changes nothing and needs no agent. The caller passes in the results that need
// the API server.
package doctor
