// SPDX-License-Identifier: Apache-2.0

// Package writeback writes to the API server. A Reporter writes what a node does not enforce exactly: the
// conditions of policies and of the Node, and events. An Announcer writes the fabric annotations of a Node.
// Nothing else is written.
//
// Failed writes are logged, counted and repeated. They affect no other component.
//
// It does not decide what is reported: package report does.
package writeback
