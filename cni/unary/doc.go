// SPDX-License-Identifier: Apache-2.0

// Package unary makes one unary call of gRPC on a connection and is done with
// it: a plugin that lives for milliseconds cannot afford to load and set up
// gRPC's own client. What is on the wire is HTTP/2 (RFC 9113) as gRPC's
// specification has it, and any server of gRPC answers it. Requests of any
// size are sent as the server has room for them.
//
// It knows no streams, no compression, no TLS, and no second call.
package unary
