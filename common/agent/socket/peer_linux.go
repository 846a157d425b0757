// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// allowed reports whether the other end runs as root or as this process's own user. The kernel recorded its
// credentials when it connected or began to listen.
func allowed(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var peer *unix.Ucred
	var peerErr error
	if err := raw.Control(func(fd uintptr) { peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || peerErr != nil {
		return false
	}
	return peer.Uid == 0 || int(peer.Uid) == os.Geteuid()
}
