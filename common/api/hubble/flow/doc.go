// SPDX-License-Identifier: Apache-2.0

// Package flow holds the messages about one flow: what happened to a packet, and the filters that select it.
//
// It is a subset of Hubble's interface of the same name. The numbers and names of fields are the contract. The
// code is generated from flow.proto by make gen. The package decides nothing: common/hubble does.
package flow
