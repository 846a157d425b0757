// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package socket

import "net"

// allowed trusts the modes of the socket and its directory: development
// systems only come here.
func allowed(*net.UnixConn) bool { return true }
