// SPDX-License-Identifier: Apache-2.0

// Package node holds the commands about the node on which isthmusctl runs: status,
// endpoints and events ask its agent; deny reads its deny lists; doctor checks
// whether Isthmus can work on it.
//
// It changes nothing on the node.
package node
