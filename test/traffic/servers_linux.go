// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
)

// Servers answer flows in network namespaces until Close. The zero value has no servers. An unspecified IPv6
// address means all addresses of both IP versions.
type Servers struct {
	mu      sync.Mutex
	open    []io.Closer
	arrived map[listener]*atomic.Uint64
}

type listener struct {
	at       netip.AddrPort
	protocol model.Protocol
}

// ServersFor returns servers that end with a test.
func ServersFor(t testing.TB) *Servers {
	s := &Servers{}
	t.Cleanup(func() { s.Close() })
	return s
}

// Close ends all servers. Open TCP connections continue.
func (s *Servers) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, c := range s.open {
		errs = append(errs, c.Close())
	}
	s.open = nil
	return errors.Join(errs...)
}

// add keeps a server, and returns the counter of what arrives there.
func (s *Servers) add(c io.Closer, at netip.AddrPort, p model.Protocol) *atomic.Uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = append(s.open, c)
	if s.arrived == nil {
		s.arrived = make(map[listener]*atomic.Uint64)
	}
	n := s.arrived[listener{at, p}]
	if n == nil {
		n = new(atomic.Uint64)
		s.arrived[listener{at, p}] = n
	}
	return n
}

// Arrived returns how many connections, datagrams or INITs have arrived at a server so far. The server reads in the
// order of arrival: after it has answered a later one, the number includes all earlier ones.
func (s *Servers) Arrived(at netip.AddrPort, p model.Protocol) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.arrived[listener{at, p}]; n != nil {
		return n.Load()
	}
	return 0
}

// Echo returns what it receives, by each of the protocols. By SCTP it answers an INIT.
func (s *Servers) Echo(ns *netns.NS, at netip.AddrPort, protocols ...model.Protocol) error {
	for _, p := range protocols {
		var err error
		switch p {
		case model.TCP:
			err = s.TCP(ns, at, func(c net.Conn) { io.Copy(c, c) })
		case model.UDP:
			err = s.UDP(ns, at, func(_ netip.AddrPort, request []byte) []byte { return request })
		case model.SCTP:
			err = s.SCTP(ns, at, func(netip.Addr) []byte { return nil })
		default:
			err = errors.New("unknown protocol")
		}
		if err != nil {
			return fmt.Errorf("echo %s at %s: %w", p, at, err)
		}
	}
	return nil
}

// Greet sends a greeting for the address of the client: by TCP on each new connection, which it
// then closes; by UDP as the answer to each datagram.
func (s *Servers) Greet(ns *netns.NS, at netip.AddrPort, greeting func(client netip.AddrPort) string) error {
	err := s.TCP(ns, at, func(c net.Conn) { io.WriteString(c, greeting(addrPort(c.RemoteAddr()))) })
	if err != nil {
		return err
	}
	return s.UDP(ns, at, func(client netip.AddrPort, _ []byte) []byte { return []byte(greeting(client)) })
}

// WhoAmI is a greeting with the client's address, as the server sees it.
func WhoAmI(client netip.AddrPort) string { return client.Addr().String() }

// TCP calls handle for each connection in a goroutine, and closes the connection afterwards.
func (s *Servers) TCP(ns *netns.NS, at netip.AddrPort, handle func(net.Conn)) error {
	var ln *net.TCPListener
	err := ns.Do(func() (err error) {
		ln, err = net.ListenTCP(network(model.TCP, at.Addr()), net.TCPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		return err
	}
	arrived := s.add(ln, at, model.TCP)
	go func() {
		for {
			c, err := ln.AcceptTCP()
			if err != nil {
				return
			}
			_ = c.SetKeepAlive(false) // a slow test would count the probes of connections that it has forgotten
			arrived.Add(1)
			go func() {
				defer c.Close()
				handle(c)
			}()
		}
	}()
	return nil
}

// UDP answers datagrams. The request is valid until answer returns.
func (s *Servers) UDP(ns *netns.NS, at netip.AddrPort, answer func(client netip.AddrPort, request []byte) []byte) error {
	var pc *net.UDPConn
	err := ns.Do(func() (err error) {
		pc, err = net.ListenUDP(network(model.UDP, at.Addr()), net.UDPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		return err
	}
	arrived := s.add(pc, at, model.UDP)
	go func() {
		for buf := make([]byte, 1<<16); ; {
			n, from, err := pc.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil { // otherwise an ICMP error about an earlier answer
				arrived.Add(1)
				pc.WriteToUDPAddrPort(answer(netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), buf[:n]), from)
			}
		}
	}()
	return nil
}

// network is the network of a listener: an IPv4 address accepts IPv4 only, even if it is
// unspecified.
func network(p model.Protocol, at netip.Addr) string {
	name := map[model.Protocol]string{model.TCP: "tcp", model.UDP: "udp"}[p]
	if at.Is4() {
		name += "4"
	}
	return name
}

func addrPort(a net.Addr) netip.AddrPort {
	parsed, _ := netip.ParseAddrPort(a.String())
	return netip.AddrPortFrom(parsed.Addr().Unmap(), parsed.Port())
}
