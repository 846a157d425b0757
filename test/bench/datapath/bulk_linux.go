// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bulkTime is how long one stream lasts.
const bulkTime = 300 * time.Millisecond

// bulk measures throughput over a fixed time: bytes of one TCP connection, and datagrams of 64
// bytes. Sender and receiver have a CPU each. The limit is mostly the copying by the sender for
// TCP, and its system calls for datagrams.
func (o options) bulk(ctx context.Context, w *setups) ([]row, error) {
	var rows []row
	for _, kind := range []struct {
		part, unit string
		run        func(*setup) (figure, error)
	}{
		{"paths: TCP stream", "Gbit/s", (*setup).stream},
		{"paths: UDP", "packet/ms", (*setup).datagrams},
	} {
		all, err := w.each(ctx, max(o.rounds/3, 1), kind.run)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", kind.part, err)
		}
		for _, of := range w.list {
			rows = append(rows, newRow(kind.part, of.name, kind.unit, all[of.name]).beside(rawSetup, all[rawSetup], goal{}))
		}
	}
	return rows, nil
}

// stream gives Gbit/s of one TCP connection.
func (of *setup) stream() (figure, error) { return undisturbed(bulkTime, of.streamOnce) }

func (of *setup) streamOnce(w *waiting) (figure, error) {
	listener, err := of.listen()
	if err != nil {
		return nil, err
	}
	defer unix.Close(listener)
	received := make(chan int, 1)
	failed := make(chan error, 1)
	go func() {
		failed <- of.server.Do(func() error {
			fd, err := accept(listener)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := prefer(0); err != nil {
				return err
			}
			n := 0
			err = w.during(func() (err error) { n, err = drain(fd); return err })
			received <- n
			return err
		})
	}()
	var took time.Duration
	err = of.client.Do(func() error {
		fd, err := dial()
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := prefer(benchCPU); err != nil {
			return err
		}
		return w.during(func() error {
			buf := make([]byte, 128<<10)
			began := time.Now()
			for time.Since(began) < bulkTime {
				if _, err := unix.Write(fd, buf); err != nil && !errors.Is(err, unix.EINTR) {
					return fmt.Errorf("send: %w", err)
				}
			}
			took = time.Since(began)
			return nil
		})
	})
	if err := errors.Join(err, <-failed); err != nil {
		return nil, err
	}
	rest(2 * bulkTime)
	return figure{float64(<-received) * 8 / float64(took.Nanoseconds())}, nil
}

// drain reads until the other side closes.
func drain(fd int) (total int, err error) {
	buf := make([]byte, 512<<10)
	for {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return total, err
		}
		total += n
	}
}

// many is the number of datagrams that one system call sends or receives.
const many = 64

// message is struct mmsghdr of sendmmsg(2).
type message struct {
	header unix.Msghdr
	length uint32
	_      [4]byte
}

// messages are datagrams of 64 bytes for sendmmsg and recvmmsg.
func messages() []message {
	all := make([]message, many)
	for i := range all {
		vector := &unix.Iovec{Base: &make([]byte, 64)[0], Len: 64}
		all[i].header.Iov, all[i].header.Iovlen = vector, 1
	}
	return all
}

func multi(trap uintptr, fd int, all []message, flags uintptr) (int, error) {
	n, _, errno := unix.Syscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(&all[0])), uintptr(len(all)), flags, 0, 0)
	if errno != 0 && errno != unix.EINTR && errno != unix.EAGAIN {
		return 0, errno
	}
	if errno != 0 {
		return 0, nil
	}
	return int(n), nil
}

// datagrams returns the number of datagrams that arrive per millisecond.
func (of *setup) datagrams() (figure, error) { return undisturbed(bulkTime, of.datagramsOnce) }

func (of *setup) datagramsOnce(w *waiting) (figure, error) {
	to, err := of.datagramSocket(true)
	if err != nil {
		return nil, err
	}
	defer unix.Close(to)
	from, err := of.datagramSocket(false)
	if err != nil {
		return nil, err
	}
	defer unix.Close(from)
	var stop atomic.Bool
	received := 0
	failed := make(chan error, 1)
	go func() {
		failed <- of.server.Do(func() error {
			if err := prefer(0); err != nil {
				return err
			}
			return w.during(func() error {
				for all := messages(); !stop.Load(); {
					n, err := multi(unix.SYS_RECVMMSG, to, all, unix.MSG_WAITFORONE)
					if err != nil {
						return fmt.Errorf("receive: %w", err)
					}
					received += n
				}
				return nil
			})
		})
	}()
	var took time.Duration
	err = of.client.Do(func() error {
		if err := prefer(benchCPU); err != nil {
			return err
		}
		return w.during(func() error {
			all := messages()
			began := time.Now()
			for time.Since(began) < bulkTime {
				if _, err := multi(unix.SYS_SENDMMSG, from, all, 0); err != nil {
					return fmt.Errorf("send: %w", err)
				}
			}
			took = time.Since(began)
			return nil
		})
	})
	stop.Store(true)
	if err := errors.Join(err, <-failed); err != nil {
		return nil, err
	}
	rest(2 * bulkTime)
	return figure{float64(received) / float64(took.Milliseconds())}, nil
}

// datagramSocket makes the socket of the server, or the connected socket of the client.
func (of *setup) datagramSocket(server bool) (fd int, err error) {
	ns := of.client
	if server {
		ns = of.server
	}
	err = ns.Do(func() error {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		at := &unix.SockaddrInet4{Port: open, Addr: serverIPs[0].As4()}
		if server {
			err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20),
				unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}), unix.Bind(fd, at))
		} else {
			err = unix.Connect(fd, at)
		}
		if err != nil {
			unix.Close(fd)
		}
		return err
	})
	return fd, err
}
