// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/test/netns"
)

// Connections exchange numbered messages with echo servers until Finish.
type Connections struct {
	listeners []net.Listener
	stop      atomic.Bool
	running   sync.WaitGroup
	exchanges atomic.Int64
	mu        sync.Mutex
	broken    []error
	resent    int // TCP segments
}

// Connect serves at the targets and opens so many connections to them in turn.
func Connect(from *netns.NS, targets []Target, count int) (*Connections, error) {
	c := &Connections{}
	for _, to := range targets {
		err := to.NS.Do(func() error {
			ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(to.To))
			if err == nil {
				c.listeners = append(c.listeners, ln)
				go echoConnections(ln)
			}
			return err
		})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("listen at %s: %w", to.To, err), c.end())
		}
	}
	for i := range count {
		to := targets[i%len(targets)]
		var conn *net.TCPConn
		err := from.Do(func() (err error) {
			conn, err = net.DialTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(to.From, 0)), net.TCPAddrFromAddrPort(to.To))
			return err
		})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("connect to %s: %w", to.To, err), c.end())
		}
		c.running.Go(func() { c.run(conn) })
	}
	return c, nil
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

// run exchanges messages on one connection until end is called, or until the connection breaks.
func (c *Connections) run(conn *net.TCPConn) {
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

// Arrived returns how many bytes the kernel has received on a connection, whether or not they have been read. So
// a late reader on a busy machine does not matter.
func Arrived(conn *net.TCPConn) (uint64, error) {
	info, err := tcpInfo(conn)
	if err != nil {
		return 0, err
	}
	return info.Bytes_received, nil
}

// retransmits returns the number of segments that a connection retransmitted.
func retransmits(conn *net.TCPConn) (int, error) {
	info, err := tcpInfo(conn)
	if err != nil {
		return 0, err
	}
	return int(info.Total_retrans), nil
}

func tcpInfo(conn *net.TCPConn) (info *unix.TCPInfo, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	controlErr := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), syscall.IPPROTO_TCP, unix.TCP_INFO) })
	if err == nil {
		err = controlErr
	}
	return info, err
}

// Exchanges returns the number of messages exchanged so far.
func (c *Connections) Exchanges() int { return int(c.exchanges.Load()) }

// end ends all connections and servers.
func (c *Connections) end() error {
	c.stop.Store(true)
	c.running.Wait()
	var errs []error
	for _, ln := range c.listeners {
		errs = append(errs, ln.Close())
	}
	return errors.Join(errs...)
}

// Finish ends all connections. It returns the errors of broken ones, the number of exchanged messages, and the
// number of retransmitted segments.
func (c *Connections) Finish() (broken []error, exchanges, retransmits int) {
	if err := c.end(); err != nil {
		broken = append(broken, err)
	}
	return append(broken, c.broken...), int(c.exchanges.Load()), c.resent
}
