// SPDX-License-Identifier: Apache-2.0

// Package usage reports how often the policies of a node have decided, by rule, and what the node does not enforce exactly.
// It adds up such reports of several nodes.
//
// Linux nodes count new flows, and Windows nodes packets. The two are never added to each other. A node without numbers is
// listed with the reason.
//
// It reads no counters and no nodes: callers have a Bundle of package inspect.
package usage
