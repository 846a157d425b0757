// SPDX-License-Identifier: Apache-2.0

// Package httpd serves metrics and health of a program over HTTP, with bounds on
// time, size and connections: its address is open to every process of the node,
// and to the network if the administrator says so.
//
// It does not authenticate and does not encrypt.
package httpd
