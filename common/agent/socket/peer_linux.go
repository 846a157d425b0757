// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// allowed reports whether the other side is root or the user that the agent
// runs as. The kernel recorded who it was when it connected.
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
