// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
)

// TestSockets sends by real sockets on the loopback interface, which takes the place of both pods.
func TestSockets(t *testing.T) {
	var entered []uint32
	s := sockets{func(id uint32, f func() error) error { entered = append(entered, id); return f() }}
	loop := netip.MustParseAddr("127.0.0.1")
	a, b := pod{compartment: 7, ip: loop}, pod{compartment: 8, ip: loop}
	for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
		entered = nil
		p := packet{protocol, freePort(t)}
		if reached, err := s.Send(t.Context(), a, b, p, 10*time.Second); !reached || err != nil || len(entered) != 2 || entered[0] != 8 || entered[1] != 7 {
			t.Errorf("%s: %t, %v, entered %d", protocol, reached, err, entered)
		}
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	used := uint16(l.Addr().(*net.TCPAddr).Port)
	if reached, err := s.Send(t.Context(), a, b, packet{model.TCP, used}, time.Second); reached || err == nil {
		t.Errorf("a port in use: %t, %v", reached, err)
	}
}

// TestSocketsBlocked checks packets that are lost and runs that are interrupted.
func TestSocketsBlocked(t *testing.T) {
	loop := netip.MustParseAddr("127.0.0.1")
	refused := errors.New("no compartment")
	s := sockets{func(id uint32, f func() error) error {
		if id == 7 {
			return refused
		}
		return f()
	}}
	a, b := pod{compartment: 7, ip: loop}, pod{compartment: 8, ip: loop}
	for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
		if reached, err := s.Send(t.Context(), a, b, packet{protocol, freePort(t)}, time.Second); reached || !errors.Is(err, refused) {
			t.Errorf("%s: %t, %v", protocol, reached, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s = sockets{func(_ uint32, f func() error) error { return f() }}
	for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
		if reached, err := s.Send(ended, a, b, packet{protocol, freePort(t)}, time.Second); reached || !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %t, %v", protocol, reached, err)
		}
	}
	receiver, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer receiver.Close()
	other, err := net.ListenPacket("udp4", "127.0.0.1:0") // gets the datagrams instead
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	sender, err := net.Dial("udp4", other.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	if reached, err := pass(t.Context(), sender, receiver, 300*time.Millisecond); reached || err != nil {
		t.Errorf("lost datagrams: %t, %v", reached, err)
	}
}

// freePort returns a port that was free.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}
