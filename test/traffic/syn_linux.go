// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/test/netns"
)

// SYNs sends TCP segments that open unused connections, each from another port. IPv4 only.
type SYNs struct {
	socket int
	ip     layers.IPv4
	to     unix.SockaddrInet4
	sent   int
}

// firstPort is the lowest source port of SYNs, ports their number.
const firstPort, ports = 1024, 64_000

// OpenSYNs returns a sender in a namespace, with an address of that namespace.
func OpenSYNs(ns *netns.NS, from, to netip.Addr) (*SYNs, error) {
	s := &SYNs{ip: layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: from.AsSlice(), DstIP: to.AsSlice()},
		to: unix.SockaddrInet4{Addr: to.As4()}}
	err := ns.Do(func() (err error) {
		s.socket, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open a raw socket: %w", err)
	}
	return s, nil
}

// Close closes the socket.
func (s *SYNs) Close() error { return unix.Close(s.socket) }

// Sent returns the number of segments so far.
func (s *SYNs) Sent() int { return s.sent }

// Send sends one segment to a port.
func (s *SYNs) Send(port uint16) error {
	tcp := &layers.TCP{SrcPort: layers.TCPPort(firstPort + s.sent%ports), DstPort: layers.TCPPort(port), Seq: uint32(s.sent), SYN: true, Window: 1024}
	if err := tcp.SetNetworkLayerForChecksum(&s.ip); err != nil {
		return err
	}
	buffer := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, &s.ip, tcp); err != nil {
		return fmt.Errorf("build a segment: %w", err)
	}
	for {
		err := unix.Sendto(s.socket, buffer.Bytes(), 0, &s.to)
		if errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EINTR) {
			time.Sleep(time.Millisecond)
			continue
		}
		if err != nil {
			return fmt.Errorf("send a segment: %w", err)
		}
		s.sent++
		return nil
	}
}

// Pace calls send so many times a second, for a time. A late call does not delay the later ones.
func Pace(ctx context.Context, perSecond int, lasts time.Duration, send func(n int) error) error {
	began, end := time.Now(), int(lasts.Seconds()*float64(perSecond))
	for n := 0; n < end; {
		due := min(end, int(time.Since(began).Seconds()*float64(perSecond)))
		for ; n < due; n++ {
			if err := send(n); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}
