// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// The number of transactions in one measurement.
const (
	requestsEach = 2000
	connectsEach = 400
)

// requests measures TCP_RR, one byte in each direction on an open connection, and TCP_CRR, the same
// on a new connection each time. Both ends run on one CPU and wait in system calls, so the time of
// a transaction is its total work.
func (o options) requests(ctx context.Context, w *setups) ([]row, error) {
	var rows []row
	for _, kind := range []struct {
		part string
		run  func(*setup) (figure, error)
		base []string
		goal []goal
	}{
		{"paths: TCP_RR", func(of *setup) (figure, error) { return of.transact(requestsEach, false) }, []string{rawSetup}, []goal{{times: 1.03}}},
		{"paths: TCP_CRR", func(of *setup) (figure, error) { return of.transact(connectsEach, true) },
			[]string{bareSetup, routedSetup}, []goal{{more: 3}, {more: 3}}},
	} {
		all, err := w.each(ctx, o.rounds, kind.run)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", kind.part, err)
		}
		for _, of := range w.list {
			r := newRow(kind.part, of.name, "us", all[of.name])
			for i, base := range kind.base {
				g := kind.goal[i]
				if !isOurs(of.name) {
					g = goal{}
				}
				rows = append(rows, r.beside(base, all[base], g))
				if !isOurs(of.name) {
					break
				}
			}
		}
	}
	return rows, nil
}

// transact returns the median time of a transaction in us.
func (of *setup) transact(count int, connect bool) (figure, error) {
	listener, err := of.listen()
	if err != nil {
		return nil, err
	}
	defer unix.Close(listener)
	served := make(chan error, 1)
	go func() {
		served <- of.server.Do(func() error {
			if err := prefer(benchCPU); err != nil {
				return err
			}
			if connect {
				return serveConnects(listener, count)
			}
			return serveRequests(listener)
		})
	}()
	times := make([]time.Duration, count)
	err = of.client.Do(func() error {
		if err := prefer(benchCPU); err != nil {
			return err
		}
		if connect {
			return timeConnects(times)
		}
		return timeRequests(times)
	})
	if err := errors.Join(err, <-served); err != nil {
		return nil, err
	}
	sum := time.Duration(0)
	for _, t := range times {
		sum += t
	}
	rest(sum)
	slices.Sort(times)
	return figure{float64(times[count/2].Nanoseconds()) / 1000}, nil
}

// listen opens the server's socket.
func (of *setup) listen() (fd int, err error) {
	err = of.server.Do(func() error {
		if fd, err = socket(); err != nil {
			return err
		}
		err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.Bind(fd, &unix.SockaddrInet4{Port: open, Addr: serverIPs[0].As4()}), unix.Listen(fd, 16))
		if err != nil {
			unix.Close(fd)
		}
		return err
	})
	return fd, err
}

// socket makes a socket with a timeout on its calls.
func socket() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	patience := &unix.Timeval{Sec: 3}
	return fd, errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, patience),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, patience), unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
}

func dial() (int, error) {
	fd, err := socket()
	if err != nil {
		return -1, err
	}
	if err := again(func() error { return unix.Connect(fd, &unix.SockaddrInet4{Port: open, Addr: serverIPs[0].As4()}) }); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("connect: %w", err)
	}
	return fd, nil
}

// again repeats a call that a signal interrupted; the Go runtime sends such signals.
func again(call func() error) error {
	for {
		err := call()
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// one reads or writes a byte; it reports whether there was one.
func one(call func(int, []byte) (int, error), fd int, b []byte) (more bool, err error) {
	err = again(func() error {
		n, err := call(fd, b)
		more = n == 1
		return err
	})
	return more, err
}

func accept(listener int) (fd int, err error) {
	err = again(func() error {
		fd, _, err = unix.Accept4(listener, unix.SOCK_CLOEXEC)
		return err
	})
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	return fd, err
}

// serveRequests answers on one connection until it is closed.
func serveRequests(listener int) error {
	fd, err := accept(listener)
	if err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	defer unix.Close(fd)
	b := make([]byte, 1)
	for {
		if more, err := one(unix.Read, fd, b); err != nil || !more {
			return err
		}
		if _, err := one(unix.Write, fd, b); err != nil {
			return err
		}
	}
}

// serveConnects answers once on each of count connections.
func serveConnects(listener, count int) error {
	b := make([]byte, 1)
	for range count {
		fd, err := accept(listener)
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		_, err = one(unix.Read, fd, b)
		if err == nil {
			_, err = one(unix.Write, fd, b)
		}
		if err == nil {
			_, err = one(unix.Read, fd, b) // the client closes first
		}
		if err := errors.Join(err, unix.Close(fd)); err != nil {
			return fmt.Errorf("serve: %w", err)
		}
	}
	return nil
}

func timeRequests(times []time.Duration) error {
	fd, err := dial()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	b := make([]byte, 1)
	for i := range times {
		began := time.Now()
		if err := exchange(fd, b); err != nil {
			return err
		}
		times[i] = time.Since(began)
	}
	return nil
}

func timeConnects(times []time.Duration) error {
	b := make([]byte, 1)
	for i := range times {
		began := time.Now()
		fd, err := dial()
		if err != nil {
			return err
		}
		if err := errors.Join(exchange(fd, b), unix.Close(fd)); err != nil {
			return err
		}
		times[i] = time.Since(began)
	}
	return nil
}

func exchange(fd int, b []byte) error {
	if _, err := one(unix.Write, fd, b); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if more, err := one(unix.Read, fd, b); err != nil || !more {
		return fmt.Errorf("receive: %t %w", more, err)
	}
	return nil
}
