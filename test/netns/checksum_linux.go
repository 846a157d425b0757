// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolSetTxChecksum turns the transmit checksum offload of a device on or off (ETHTOOL_STXCSUM).
const ethtoolSetTxChecksum = 0x17

// FillChecksums makes the kernel fill in checksums before a packet leaves by a veth pair of the current
// namespace. By default such a pair carries packets without checksums, also the inner packets of tunnels. A
// program that reads the datagrams of the tunnel would see incomplete packets.
func FillChecksums(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	value := struct{ command, data uint32 }{ethtoolSetTxChecksum, 0}
	var request struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:unix.IFNAMSIZ-1], name)
	request.data = unsafe.Pointer(&value)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return fmt.Errorf("switch checksums of %s: %w", name, errno)
	}
	return nil
}
