// SPDX-License-Identifier: Apache-2.0

// Package foreign enforces policy on HNS endpoints that another CNI plugin made, on networks of that plugin.
//
// It finds the endpoint of a pod by HCN namespace and addresses, on any network. It writes ACLs beside those of
// others, which it keeps byte for byte, and orders its own so that a packet passes only if both allow it. Where
// that is impossible, it denies a whole direction and reports it.
//
// It makes no networks, endpoints, sets, addresses or routes, and deletes none.
package foreign
