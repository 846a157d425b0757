// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/test/netns"
)

// connections exchange numbered messages with echo servers until finish.
type connections struct {
	stop      atomic.Bool
	running   sync.WaitGroup
	exchanges atomic.Int64
	mu        sync.Mutex
	broken    []error
	resent    int // TCP segments
}

// connect opens so many connections, to the targets in turn.
func connect(t *testing.T, from *netns.NS, targets []target, count int) *connections {
	t.Helper()
	for _, to := range targets {
		err := to.ns.Do(func() error {
			ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(to.to))
			if err != nil {
				return err
			}
			t.Cleanup(func() { ln.Close() })
			go echoConnections(ln)
			return nil
		})
		if err != nil {
			t.Fatalf("listen at %s: %v", to.to, err)
		}
	}
	c := &connections{}
	for i := range count {
		to := targets[i%len(targets)]
		var conn *net.TCPConn
		err := from.Do(func() (err error) {
			conn, err = net.DialTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(to.from, 0)), net.TCPAddrFromAddrPort(to.to))
			return err
		})
		if err != nil {
			t.Fatalf("connect to %s: %v", to.to, err)
		}
		c.running.Go(func() { c.run(conn) })
	}
	return c
}

func echoConnections(ln *net.TCPListener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			io.Copy(c, c)
		}()
	}
}

// run exchanges messages on one connection until all are to stop, or until it
// breaks.
func (c *connections) run(conn *net.TCPConn) {
	defer conn.Close()
	var err error
	for n := uint64(0); !c.stop.Load() && err == nil; n++ {
		err = exchangeNumber(conn, n)
		c.exchanges.Add(1)
		time.Sleep(20 * time.Millisecond)
	}
	resent, infoErr := retransmits(conn)
	if err == nil {
		err = infoErr
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resent += resent
	if err != nil {
		c.broken = append(c.broken, fmt.Errorf("%s to %s: %w", conn.LocalAddr(), conn.RemoteAddr(), err))
	}
}

func exchangeNumber(conn *net.TCPConn, n uint64) error {
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	var message, answer [messageSize]byte
	binary.LittleEndian.PutUint64(message[:], n)
	if _, err := conn.Write(message[:]); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return err
	}
	if answer != message {
		return fmt.Errorf("sent message %d, got %d", n, binary.LittleEndian.Uint64(answer[:]))
	}
	return nil
}

// retransmits asks the kernel how many segments a connection sent again.
func retransmits(conn *net.TCPConn) (n int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var info *unix.TCPInfo
	controlErr := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), syscall.IPPROTO_TCP, unix.TCP_INFO) })
	if err == nil {
		err = controlErr
	}
	if err != nil {
		return 0, err
	}
	return int(info.Total_retrans), nil
}

// finish ends all connections.
func (c *connections) finish() (broken []error, exchanges, retransmits int) {
	c.stop.Store(true)
	c.running.Wait()
	return c.broken, int(c.exchanges.Load()), c.resent
}
