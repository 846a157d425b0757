// SPDX-License-Identifier: Apache-2.0

// Package rulemeter exports how often each rule of policy has decided, as series of a metric.
//
// The number of series has a limit. A rule that has series keeps them as long as policy decides by it. Rules
// beyond the limit are counted in a metric of their own.
//
// A series belongs to what a rule says, not to its place in the policy: a rule that moves to another index gets
// other series, with its own count. So no series ever continues with the count of another rule.
//
// It does not count, and does not read a data path: a dataplane.CauseCounter does.
package rulemeter
