// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package socket

import "net"

// allowed relies on the modes of the socket and its directory. Only development systems use it.
func allowed(*net.UnixConn) bool { return true }
