// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
)

// sockets sends packets by the sockets of pods.
type sockets struct {
	// in runs f on a thread in a compartment; the sockets of f belong to that compartment.
	in func(compartment uint32, f func() error) error
}

// Send implements wire.
func (s sockets) Send(ctx context.Context, from, to pod, p packet, wait time.Duration) (reached bool, err error) {
	at := netip.AddrPortFrom(to.ip, p.port).String()
	remote := at
	if to.ip.Zone() != "" { // the zones of both compartments are unrelated
		remote = netip.AddrPortFrom(to.ip.WithZone(from.ip.Zone()), p.port).String()
	}
	if p.protocol == model.UDP {
		return s.datagram(ctx, from, to, at, wait)
	}
	var l net.Listener
	if err := s.in(to.compartment, func() (err error) {
		l, err = net.Listen("tcp", at)
		return err
	}); err != nil {
		return false, fmt.Errorf("listen in compartment %d: %w", to.compartment, err)
	}
	defer l.Close()
	err = s.in(from.compartment, func() error {
		conn, err := (&net.Dialer{Timeout: wait}).DialContext(ctx, "tcp", remote)
		if err != nil {
			var t net.Error
			if errors.As(err, &t) {
				return ctx.Err() // refused by a rule, or silently dropped
			}
			return err
		}
		reached = true
		return conn.Close()
	})
	return reached, err
}

// Adapter implements wire. It looks at the interface that has the IPv4 address of the pod.
func (s sockets) Adapter(of pod) (found adapter, _ error) {
	err := s.in(of.compartment, func() error {
		all, err := net.Interfaces()
		if err != nil {
			return err
		}
		for _, i := range all {
			addresses, err := i.Addrs()
			if err != nil {
				return err
			}
			this, own := adapter{mtu: i.MTU}, false
			for _, a := range addresses {
				p, err := netip.ParsePrefix(a.String())
				if err != nil {
					continue
				}
				own = own || p.Addr() == of.ip
				if p.Addr().IsLinkLocalUnicast() && p.Addr().Is6() {
					this.linkLocal = p.Addr().WithZone(strconv.Itoa(i.Index))
				}
			}
			if own {
				found = this
			}
		}
		return nil
	})
	if err != nil {
		return found, fmt.Errorf("read the addresses in compartment %d: %w", of.compartment, err)
	}
	return found, nil
}

// resend is the interval between datagrams, any of which may be lost.
const resend = 100 * time.Millisecond

// datagram is Send for UDP.
func (s sockets) datagram(ctx context.Context, from, to pod, at string, wait time.Duration) (reached bool, err error) {
	var receiver net.PacketConn
	if err := s.in(to.compartment, func() (err error) {
		receiver, err = net.ListenPacket("udp4", at)
		return err
	}); err != nil {
		return false, fmt.Errorf("listen in compartment %d: %w", to.compartment, err)
	}
	defer receiver.Close()
	err = s.in(from.compartment, func() error {
		sender, err := net.Dial("udp4", at)
		if err != nil {
			return err
		}
		defer sender.Close()
		reached, err = pass(ctx, sender, receiver, wait)
		return err
	})
	return reached, err
}

// pass sends datagrams until one arrives or the time is up.
func pass(ctx context.Context, sender net.Conn, receiver net.PacketConn, wait time.Duration) (bool, error) {
	one := make([]byte, 1)
	for deadline := time.Now().Add(wait); time.Now().Before(deadline) && ctx.Err() == nil; {
		if _, err := sender.Write([]byte{1}); err != nil {
			time.Sleep(resend) // a rule that blocks may make sending fail
			continue
		}
		if err := receiver.SetReadDeadline(time.Now().Add(resend)); err != nil {
			return false, err
		}
		if _, _, err := receiver.ReadFrom(one); err == nil {
			return true, nil
		}
	}
	return false, ctx.Err()
}

// Stream implements wire.
func (s sockets) Stream(ctx context.Context, from, to pod, port uint16, length time.Duration) (rate float64, err error) {
	at := netip.AddrPortFrom(to.ip, port).String()
	var l net.Listener
	if err := s.in(to.compartment, func() (err error) {
		l, err = net.Listen("tcp4", at)
		return err
	}); err != nil {
		return 0, fmt.Errorf("listen in compartment %d: %w", to.compartment, err)
	}
	defer l.Close()
	received := make(chan float64, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			received <- 0
			return
		}
		defer conn.Close()
		began := time.Now()
		n, _ := io.Copy(io.Discard, conn) // the sender ends it
		received <- float64(n) / time.Since(began).Seconds()
	}()
	err = s.in(from.compartment, func() error {
		conn, err := (&net.Dialer{Timeout: connectTime}).DialContext(ctx, "tcp4", at)
		if err != nil {
			return err
		}
		return errors.Join(fill(conn, length), conn.Close())
	})
	if err != nil {
		l.Close()
	}
	return <-received, err
}

// fill writes to a connection for some time.
func fill(conn net.Conn, length time.Duration) error {
	if err := conn.SetWriteDeadline(time.Now().Add(length)); err != nil {
		return err
	}
	buffer := make([]byte, 64<<10)
	for {
		if _, err := conn.Write(buffer); errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
