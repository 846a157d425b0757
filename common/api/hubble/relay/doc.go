// SPDX-License-Identifier: Apache-2.0

// Package relay holds the messages about the state of nodes.
//
// It is a subset of Hubble's interface of the same name. The numbers and names of fields are the contract. The
// code is generated from relay.proto by make gen. The package decides nothing: common/hubble does.
package relay
