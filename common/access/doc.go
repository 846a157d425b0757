// SPDX-License-Identifier: Apache-2.0

// Package access decides what a client may read of live data: the flows of which namespaces, and data of nodes.
//
// The rights are those of virtual resources in the API group inspect.isthmus.dev, which RBAC grants like any
// other right. An Authority answers for the API server. A Checker remembers its answers for a bounded time and
// refuses when there is no answer.
//
// It reads no token's content, calls no API server itself and cuts no data: common/kube/review and
// common/relay/redact do.
package access
