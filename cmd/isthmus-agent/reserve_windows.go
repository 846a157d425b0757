// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"unsafe"

	"golang.org/x/sys/windows"
)

// hnsMutex exists while an agent uses HNS. Windows removes it when the agent ends for any reason.
const hnsMutex = `Global\isthmus-hns`

// hnsMutexAccess lets only the system and administrators open the mutex.
const hnsMutexAccess = "O:BAD:P(A;;GA;;;SY)(A;;GA;;;BA)"

// reserveHNS makes this the only agent of the host, whatever its directories, sockets and HNS network are. Routes, forwarding flags
// and the event session are the host's, and mode policy writes to the endpoints of all networks. No process waits for the mutex: its
// existence is the reservation.
func reserveHNS() (io.Closer, error) {
	sd, err := windows.SecurityDescriptorFromString(hnsMutexAccess)
	if err != nil {
		return nil, fmt.Errorf("reserve HNS: %w", err)
	}
	name, err := windows.UTF16PtrFromString(hnsMutex)
	if err != nil {
		return nil, fmt.Errorf("reserve HNS: %w", err)
	}
	access := &windows.SecurityAttributes{SecurityDescriptor: sd}
	access.Length = uint32(unsafe.Sizeof(*access))
	m, err := windows.CreateMutex(access, false, name)
	if err == nil {
		return &mutex{m}, nil
	}
	if m != 0 {
		err = errors.Join(err, windows.CloseHandle(m))
	}
	if errors.Is(err, windows.ERROR_ALREADY_EXISTS) || errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		return nil, fmt.Errorf("reserve HNS: another process has the mutex %s, and one agent of a host may use HNS: stop the other agent: %w", hnsMutex, err)
	}
	return nil, fmt.Errorf("reserve HNS: create the mutex %s: %w", hnsMutex, err)
}

// mutex is a mutex that this process has opened; 0 once it is closed.
type mutex struct{ handle windows.Handle }

// Close implements io.Closer.
func (m *mutex) Close() error {
	h := m.handle
	if m.handle = 0; h == 0 {
		return nil
	}
	return windows.CloseHandle(h)
}
