// SPDX-License-Identifier: Apache-2.0

// Package httpd serves a program's metrics and health over HTTP, with limits on time, size and connections.
// The limits matter because every process of the node can reach the address, and the network too if the
// administrator configures it.
//
// It does not authenticate and does not encrypt.
package httpd
