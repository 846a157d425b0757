// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
)

// Associations of real SCTP sockets, which have every address of their pod, open only where policy allows it. They
// survive a restart of the agent. They stop when policy revokes them, and go on when it allows them again.
func TestSCTPSockets(t *testing.T) {
	l := newLab(t)
	if !kernelHasSCTP() {
		if os.Getenv("ISTHMUS_EMULATED") != "" {
			t.Fatal("the guest did not load the module sctp")
		}
		t.Skip("this kernel has no SCTP: make test-kernel runs it")
	}
	const open, closed = 7000, 7001
	a, b, c := l.pod("a", 11), l.pod("b", 12), l.pod("c", 13)
	for _, ns := range []*netns.NS{b, l.outside} {
		l.serveSCTP(ns, open)
	}
	l.serveSCTP(b, closed)
	port := model.PortMatch{Protocol: model.SCTP, First: open, Last: open}
	toOutside := isolate("a", model.Egress, accept(pods("b"), port), accept(block(outsideAddr4+"/32"), port), accept(block(outsideAddr6+"/128"), port))
	fromA := isolate("b", model.Ingress, accept(pods("a"), port))
	isolated := []*model.Policy{isolate("a", model.Ingress), isolate("b", model.Egress), toOutside}
	l.apply(append(isolated, fromA)...)
	for _, to := range []struct{ pod, outside string }{{"10.1.0.12", outsideAddr4}, {"fd01::c", outsideAddr6}} {
		association := l.opensSCTP(a, to.pod, open)
		l.opensSCTP(a, to.outside, open)
		l.deniedSCTP(a, to.pod, closed)
		l.deniedSCTP(c, to.pod, open)
		l.deniedSCTP(l.outside, to.pod, open)

		l.must(l.backend.Close())
		l.start()
		if err := exchange(association, patience); err != nil {
			t.Errorf("%s: an association after a restart: %v", to.pod, err)
		}
		l.apply(append(isolated, isolate("b", model.Ingress))...)
		if err := exchange(association, silence); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: a revoked association: want silence, got %v", to.pod, err)
		}
		l.apply(append(isolated, fromA)...)
		if err := received(association, patience); err != nil {
			t.Errorf("%s: an association that is allowed again: %v", to.pod, err)
		}
	}
}

// opensSCTP opens an association and exchanges a message.
func (l *lab) opensSCTP(from *netns.NS, to string, port uint16) *os.File {
	l.t.Helper()
	f, err := dialSCTP(from, to, port, patience)
	if err != nil {
		l.t.Fatalf("SCTP to %s port %d: want an association, got %v", to, port, err)
	}
	l.t.Cleanup(func() { f.Close() })
	if err := exchange(f, patience); err != nil {
		l.t.Fatalf("a message over SCTP to %s port %d: %v", to, port, err)
	}
	return f
}

// deniedSCTP tries to open an association that the node denies.
func (l *lab) deniedSCTP(from *netns.NS, to string, port uint16) {
	l.t.Helper()
	before := l.decided(model.Deny)
	f, err := dialSCTP(from, to, port, silence)
	if err == nil {
		f.Close()
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		l.t.Errorf("SCTP to %s port %d: want silence, got %v", to, port, err)
	}
	if l.decided(model.Deny) == before {
		l.t.Errorf("SCTP to %s port %d: the node denied no flow", to, port)
	}
}

func kernelHasSCTP() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if err == nil {
		unix.Close(fd)
	}
	return err == nil
}

// socketSCTP returns a socket for a destination, and the destination.
func socketSCTP(to netip.AddrPort) (int, unix.Sockaddr, error) {
	family, addr := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())})
	if to.Addr().Is4() {
		family, addr = unix.AF_INET, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	return fd, addr, err
}

// dialSCTP opens an association within a time.
func dialSCTP(from *netns.NS, to string, port uint16, limit time.Duration) (f *os.File, err error) {
	err = from.Do(func() error {
		fd, addr, err := socketSCTP(netip.AddrPortFrom(netip.MustParseAddr(to), port))
		if err != nil {
			return err
		}
		if err := unix.Connect(fd, addr); !errors.Is(err, unix.EINPROGRESS) {
			return errors.Join(fmt.Errorf("connect: %w", err), unix.Close(fd))
		}
		f = os.NewFile(uintptr(fd), "sctp")
		return nil
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if err := f.SetDeadline(time.Now().Add(limit)); err != nil {
		return nil, err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var result int
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		if done, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0); done <= 0 {
			return false
		}
		result, failed = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		return true
	})
	if result != 0 {
		failed = unix.Errno(result)
	}
	return f, errors.Join(err, failed)
}

// exchange sends a message that takes several packets, and waits for its echo.
func exchange(f *os.File, limit time.Duration) error {
	if err := f.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	if _, err := f.Write(sctpMessage); err != nil {
		return err
	}
	return received(f, limit)
}

var sctpMessage = bytes.Repeat([]byte("0123456789abcdef"), 500)

// received waits for the echo of a message.
func received(f *os.File, limit time.Duration) error {
	if err := f.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	got := make([]byte, len(sctpMessage))
	if _, err := io.ReadFull(f, got); err != nil {
		return err
	}
	if !bytes.Equal(got, sctpMessage) {
		return errors.New("the message came back changed")
	}
	return nil
}

// serveSCTP returns what it receives at a port of all addresses of a namespace, until the test ends.
func (l *lab) serveSCTP(ns *netns.NS, port uint16) {
	l.t.Helper()
	var listener *os.File
	l.must(ns.Do(func() error {
		fd, addr, err := socketSCTP(netip.AddrPortFrom(netip.IPv6Unspecified(), port))
		if err != nil {
			return err
		}
		listener = os.NewFile(uintptr(fd), "sctp listener")
		return errors.Join(unix.Bind(fd, addr), unix.Listen(fd, 16))
	}))
	var accepting, serving sync.WaitGroup
	var associations []*os.File
	accepting.Go(func() {
		for {
			f, err := acceptSCTP(listener)
			if err != nil {
				return // closed
			}
			associations = append(associations, f)
			serving.Go(func() { echoSCTP(f) })
		}
	})
	l.t.Cleanup(func() {
		listener.Close()
		accepting.Wait()
		for _, f := range associations {
			f.Close()
		}
		serving.Wait()
	})
}

func acceptSCTP(listener *os.File) (*os.File, error) {
	raw, err := listener.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var failed error
	err = raw.Read(func(l uintptr) bool {
		fd, _, failed = unix.Accept4(int(l), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		return !errors.Is(failed, unix.EAGAIN)
	})
	if err := errors.Join(err, failed); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "sctp"), nil
}

// echoSCTP returns what it receives until the association ends.
func echoSCTP(f *os.File) {
	buffer := make([]byte, 1<<16)
	for {
		n, err := f.Read(buffer)
		if err != nil || n == 0 {
			return
		}
		if _, err := f.Write(buffer[:n]); err != nil {
			return
		}
	}
}
