// SPDX-License-Identifier: Apache-2.0

package vfp

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/test/netns"
)

// tap is a device in a network namespace whose other end is this process.
type tap struct {
	file *os.File
	done chan struct{}
}

// maxFrame is an upper bound of the size of frames, in bytes.
const maxFrame = 64 << 10

// hostIndex is the index of the interface of every host device. It stays the same if HNS or the emulator restarts: Wine
// takes an interface for an earlier one of the same name, and gives its addresses to the index of that.
const hostIndex = 9000

// OpenTap makes a device in a namespace, with the addresses, the routes and the hardware address of the port, and
// passes its frames to the switch. A nil namespace is that of the process.
func OpenTap(ns *netns.NS, name string, spec Spec, sw *Switch) (Device, error) {
	t := &tap{done: make(chan struct{})}
	open := func() (err error) {
		if t.file, err = makeTap(name, spec.Host); err != nil {
			return err
		}
		return configureTap(name, spec)
	}
	var err error
	if ns == nil {
		err = open()
	} else {
		err = ns.Do(open)
	}
	if err != nil {
		if t.file != nil {
			err = errors.Join(err, t.file.Close())
		}
		return nil, fmt.Errorf("make device %s: %w", name, err)
	}
	go t.read(spec.ID, sw)
	return t, nil
}

func makeTap(name string, host bool) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	if host {
		err = unix.IoctlSetPointerInt(fd, unix.TUNSETIFINDEX, hostIndex)
	}
	var request *unix.Ifreq
	if err == nil {
		request, err = unix.NewIfreq(name)
	}
	if err == nil {
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil
}

func configureTap(name string, spec Spec) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetHardwareAddr(link, spec.MAC); err != nil {
		return err
	}
	if err := netlink.LinkSetMTU(link, spec.MTU); err != nil {
		return err
	}
	for _, p := range spec.Addresses {
		a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}, Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrAdd(link, a); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	for _, g := range spec.Gateways {
		r := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: g.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}
		if err := netlink.RouteAdd(r); err != nil {
			return err
		}
	}
	return nil
}

// read ends when the device is closed.
func (t *tap) read(id string, sw *Switch) {
	defer close(t.done)
	frame := make([]byte, maxFrame)
	for {
		n, err := t.file.Read(frame)
		if err != nil {
			return
		}
		sw.Frame(id, frame[:n])
	}
}

// Write implements Device.
func (t *tap) Write(frame []byte) (int, error) { return t.file.Write(frame) }

// Close implements Device. The device is gone from its namespace afterwards.
func (t *tap) Close() error {
	err := t.file.Close()
	<-t.done
	return err
}
