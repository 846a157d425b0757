// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"context"
	"errors"
	"net"
	"time"
)

// Sockets are the two listeners of an agent. Each speaks one protocol. Both have the same access rules.
type Sockets struct {
	// Requests is for isthmus-cni: frames.
	Requests net.Listener
	// Inspection is for isthmusctl: gRPC.
	Inspection net.Listener
}

// Inspection returns the address of an agent's inspection socket. The argument is the address of its CNI
// socket, which users configure.
func Inspection(address string) string { return address + ".inspect" }

// Hubble returns the address of the socket on which an agent serves Hubble's interface. The argument is the
// address of its CNI socket.
func Hubble(address string) string { return address + ".hubble" }

// Open opens both sockets of an agent, or neither. The errors are those of Listen.
func Open(address string) (*Sockets, error) {
	requests, err := Listen(address)
	if err != nil {
		return nil, err
	}
	inspection, err := Listen(Inspection(address))
	if err != nil {
		return nil, errors.Join(err, requests.Close())
	}
	return &Sockets{requests, inspection}, nil
}

// watching is the interval in which Watch looks at the files of sockets.
const watching = time.Second

// Watch waits until the context is done. It returns an error if another process removes the file of a socket meanwhile: the
// listener remains, but no program can connect to it. Pipes of Windows cannot be removed.
func (s *Sockets) Watch(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watching):
		}
		for _, l := range []net.Listener{s.Requests, s.Inspection} {
			if f, ok := l.(interface{ lost() error }); ok {
				if err := f.lost(); err != nil {
					return err
				}
			}
		}
	}
}

// Close closes both sockets and, on Unix, removes their files. A socket that is already closed is not an
// error.
func (s *Sockets) Close() error {
	var errs []error
	for _, l := range []net.Listener{s.Requests, s.Inspection} {
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
