// SPDX-License-Identifier: Apache-2.0

// Package ends finds the addresses and the port of a flow that a user names: by pod, node or address, and by number or
// by the name of a port.
//
// It decides nothing about flows.
package ends
