// SPDX-License-Identifier: Apache-2.0

package vfp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/test/netns"
)

// vxlanPort is the UDP port of HNS's tunnels.
const vxlanPort = 4789

// udp is an Underlay on the kernel's UDP.
type udp struct {
	conn *net.UDPConn
	done chan struct{}
}

// OpenUnderlay opens the VXLAN port of a namespace, nil for that of the process, and passes received datagrams to
// the switch.
func OpenUnderlay(ns *netns.NS, sw *Switch) (Underlay, error) {
	u := &udp{done: make(chan struct{})}
	listen := func() (err error) {
		if u.conn, err = net.ListenUDP("udp4", &net.UDPAddr{Port: vxlanPort}); err != nil {
			return err
		}
		if err = keep(u.conn); err != nil {
			err = errors.Join(err, u.conn.Close())
		}
		return err
	}
	var err error
	if ns == nil {
		err = listen()
	} else {
		err = ns.Do(listen)
	}
	if err != nil {
		return nil, fmt.Errorf("take udp port %d: %w", vxlanPort, err)
	}
	go u.read(sw)
	return u, nil
}

// buffer is the number of bytes that the kernel keeps for the switch: it may run late on a busy machine, and a real one
// loses nothing then.
const buffer = 16 << 20

// keep makes the kernel keep as many bytes of received datagrams.
func keep(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	control := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer) })
	return errors.Join(control, err)
}

// read ends when the socket is closed.
func (u *udp) read(sw *Switch) {
	defer close(u.done)
	datagram := make([]byte, maxFrame)
	for {
		n, err := u.conn.Read(datagram)
		if err != nil {
			return
		}
		sw.Tunneled(datagram[:n])
	}
}

// Send implements Underlay.
func (u *udp) Send(node netip.Addr, datagram []byte) error {
	_, err := u.conn.WriteToUDPAddrPort(datagram, netip.AddrPortFrom(node, vxlanPort))
	return err
}

// Close implements Underlay.
func (u *udp) Close() error {
	err := u.conn.Close()
	<-u.done
	return err
}
