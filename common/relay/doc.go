// SPDX-License-Identifier: Apache-2.0

// Package relay merges the flows of all nodes into one stream, ordered by time, and serves it over Hubble's
// Observer interface.
//
// The core is pure: merge.go orders what has arrived. A Pool holds the connections to agents and learns from them
// which nodes exist. A Relay answers clients, and names the nodes whose flows are missing.
//
// A Checker of common/access, if there is one, decides what a client reads, and common/relay/redact hides the rest.
//
// It stores no flows and selects none itself: common/hubble filters them at the agents.
package relay
