// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
)

func openNS(n *netns.NS) (*os.File, error) { return os.Open(n.Path()) }

// listeners are the servers in one namespace; Close stops them.
type listeners struct {
	mu   sync.Mutex
	list []io.Closer
}

func (l *listeners) add(c io.Closer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, c)
}

// Close stops all servers.
func (l *listeners) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, c := range l.list {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// serve answers with an echo on one address and port.
func (l *listeners) serve(ns *netns.NS, at netip.AddrPort, p model.Protocol) error {
	return ns.Do(func() error {
		switch p {
		case model.TCP:
			ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
			if err != nil {
				return err
			}
			l.add(ln)
			go echoTCP(ln)
		case model.UDP:
			pc, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
			if err != nil {
				return err
			}
			l.add(pc)
			go echoUDP(pc)
		case model.SCTP:
			pc, err := net.ListenIP(sctpNetwork(at.Addr()), &net.IPAddr{IP: at.Addr().AsSlice()})
			if err != nil {
				return err
			}
			l.add(pc)
			go echoSCTP(pc, at.Port())
		default:
			return fmt.Errorf("no server for protocol %s", p)
		}
		return nil
	})
}

func echoTCP(ln net.Listener) {
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

func echoUDP(pc *net.UDPConn) {
	buf := make([]byte, 2048)
	for {
		n, from, err := pc.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			pc.WriteTo(buf[:n], from)
		}
	}
}

// SCTP has no sockets here: packets with its common header (RFC 9260, section
// 3.1) and no association are sent and answered by hand. Policy and the data
// path look at no more than that header.
func sctpNetwork(a netip.Addr) string {
	if a.Is6() {
		return "ip6:132"
	}
	return "ip4:132"
}

func sctpPacket(src, dst uint16) []byte {
	p := make([]byte, 28)
	binary.BigEndian.PutUint16(p, src)
	binary.BigEndian.PutUint16(p[2:], dst)
	p[12] = 1 // INIT
	binary.BigEndian.PutUint16(p[14:], 16)
	return p
}

func echoSCTP(pc *net.IPConn, port uint16) {
	buf := make([]byte, 2048)
	for {
		n, from, err := pc.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && n >= 12 && binary.BigEndian.Uint16(buf[2:]) == port {
			pc.WriteTo(sctpPacket(port, binary.BigEndian.Uint16(buf)), from)
		}
	}
}

// connect tries whether a new flow gets through and is answered: it sends from
// an address in a namespace and waits for the echo. Only silence counts as
// denied; anything else that goes wrong is an error.
func connect(ctx context.Context, ns *netns.NS, from, to netip.Addr, p model.Protocol, port uint16, patience time.Duration) (model.Verdict, error) {
	var verdict model.Verdict
	err := ns.Do(func() error {
		c, err := dial(ctx, from, to, p, port, patience)
		if err == nil {
			defer c.Close()
			err = echo(c, p, port, patience)
		}
		switch {
		case err == nil:
			verdict = model.Allow
		case silent(err):
			verdict = model.Deny
		default:
			return err
		}
		return nil
	})
	return verdict, err
}

func dial(ctx context.Context, from, to netip.Addr, p model.Protocol, port uint16, patience time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: patience}
	switch p {
	case model.TCP:
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
		return d.DialContext(ctx, "tcp", netip.AddrPortFrom(to, port).String())
	case model.UDP:
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
		return d.DialContext(ctx, "udp", netip.AddrPortFrom(to, port).String())
	case model.SCTP:
		return net.DialIP(sctpNetwork(to), &net.IPAddr{IP: from.AsSlice()}, &net.IPAddr{IP: to.AsSlice()})
	}
	return nil, fmt.Errorf("no client for protocol %s", p)
}

// echo sends something and waits for the answer.
func echo(c net.Conn, p model.Protocol, port uint16, patience time.Duration) error {
	c.SetDeadline(time.Now().Add(patience))
	message := []byte("isthmus")
	source := uint16(0)
	if p == model.SCTP {
		source = 32768 + uint16(time.Now().UnixNano()%28000)
		message = sctpPacket(source, port)
	}
	if _, err := c.Write(message); err != nil {
		return err
	}
	buf := make([]byte, 2048)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return err
		}
		// Raw sockets hear every packet of the protocol.
		if p != model.SCTP || n >= 12 && binary.BigEndian.Uint16(buf[n-28+2:]) == source {
			return nil
		}
	}
}

// silent reports whether an error means that nobody answered.
func silent(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.Is(err, syscall.ETIMEDOUT)
}

// portName is "TCP/80".
func portName(p model.Protocol, port uint16) string {
	return p.String() + "/" + strconv.Itoa(int(port))
}
