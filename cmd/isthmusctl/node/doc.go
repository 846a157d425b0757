// SPDX-License-Identifier: Apache-2.0

// Package node holds the commands about the node on which isthmusctl runs. status,
// endpoints, events, policies and trace ask its agent. bundle writes its answers to an
// archive, and replay reads it. deny reads the deny lists of the node. doctor checks
// whether Isthmus can work on it.
//
// It changes nothing on the node but the level of the log.
package node
