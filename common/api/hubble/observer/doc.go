// SPDX-License-Identifier: Apache-2.0

// Package observer is the gRPC service that streams flows: requests, answers, client and server.
//
// It is a subset of Hubble's interface of the same name. The numbers and names of fields are the contract. The
// code is generated from observer.proto by make gen. The package decides nothing: common/hubble does.
package observer
