// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/isthmus-net/isthmus/common/model"
)

var (
	iphlpapi = windows.NewLazySystemDLL("iphlpapi.dll")
	tcpTable = iphlpapi.NewProc("GetExtendedTcpTable")
	udpTable = iphlpapi.NewProc("GetExtendedUdpTable")
)

// The classes TCP_TABLE_OWNER_PID_LISTENER and UDP_TABLE_OWNER_PID.
const (
	listeners = 3
	bound     = 1
)

// attempts bounds how often a table is read that grows meanwhile.
const attempts = 8

// Listening lists where processes of the host accept connections or datagrams; it implements dataplane.SocketLister. The tables
// are those of the agent's compartment, which is the host's, and do not show which UDP sockets are connected: all count.
func Listening() (all []model.HostPort, err error) {
	for _, t := range tables {
		raw, err := t.read()
		if err == nil {
			var found []model.HostPort
			found, err = t.parse(raw)
			all = append(all, found...)
		}
		if err != nil {
			return nil, fmt.Errorf("list %s sockets of the node: %w", t.protocol, err)
		}
	}
	return all, nil
}

func (t table) read() ([]byte, error) {
	family, class, get := windows.AF_INET, bound, udpTable
	if t.v6 {
		family = windows.AF_INET6
	}
	if t.protocol == model.TCP {
		class, get = listeners, tcpTable
	}
	if err := get.Find(); err != nil {
		return nil, err
	}
	size := uint32(16 << 10)
	for range attempts {
		raw := make([]byte, size)
		code, _, _ := get.Call(uintptr(unsafe.Pointer(&raw[0])), uintptr(unsafe.Pointer(&size)), 0, uintptr(family), uintptr(class), 0)
		switch errno := syscall.Errno(code); {
		case code == 0:
			return raw, nil
		case !errors.Is(errno, windows.ERROR_INSUFFICIENT_BUFFER):
			return nil, errno
		}
		size += 4 << 10 // more sockets may be opened meanwhile
	}
	return nil, errors.New("the table keeps growing")
}
