// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"syscall"
)

// wsaeconnrefused is an error of Winsock that package syscall does not name.
const wsaeconnrefused = syscall.Errno(10061)

// refused reports whether the host says that nothing listens at a port. Winsock reports the ICMP error about a datagram as
// a reset (SIO_UDP_CONNRESET).
func refused(kind string, err error) bool {
	return errors.Is(err, wsaeconnrefused) || kind == UDP && errors.Is(err, syscall.WSAECONNRESET)
}
