// SPDX-License-Identifier: Apache-2.0

// Package peer is the gRPC service that lists the nodes with an Observer.
//
// It is a subset of Hubble's interface of the same name. The numbers and names of fields are the contract. The
// code is generated from peer.proto by make gen. The package decides nothing: common/hubble does.
package peer
