// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// underPolicy checks an open connection while a policy denies it, and afterwards.
func underPolicy(t *testing.T, c *cluster.Cluster, from *netns.NS, to netip.AddrPort) {
	t.Helper()
	err := from.Do(func() error {
		conn, err := net.Dial("udp", to.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := traffic.Exchange(conn, patience); err != nil {
			return err
		}
		if err := c.Manifests.Put("no-client", noClient); err != nil {
			return err
		}
		eventually(t, func() error {
			if traffic.Exchange(conn, impatience) == nil {
				return errors.New("an open flow gets around a new policy")
			}
			return nil
		})
		if err := c.Manifests.Drop("no-client"); err != nil {
			return err
		}
		eventually(t, func() error { return traffic.Exchange(conn, impatience) })
		return nil
	})
	if err != nil {
		t.Errorf("to %s: %v", to, err)
	}
}

// streamRate is the number of packets per second that keepsAll sends.
const streamRate = 2000

// keepsAll sends packets and keeps connections open during a change. No packet may be lost. A change of the fabric
// returns for how long only one node was ready. The pods may not reach each other then, and a device may go with the
// packets in it. Apart from that time no more than the packets of a second, and 5 %, may be lost, and none afterwards.
func keepsAll(t *testing.T, client, server *cluster.Pod, fabric bool, change func() (apart time.Duration)) {
	t.Helper()
	var to []traffic.Target
	for _, v6 := range []bool{false, true} {
		to = append(to, traffic.Target{NS: server.NS, From: address(client, v6), To: netip.AddrPortFrom(address(server, v6), 7300)})
	}
	open, err := traffic.Connect(client.NS, to, 20)
	if err != nil {
		t.Fatal(err)
	}
	stream := func(fabric bool, f func() time.Duration) {
		t.Helper()
		s, err := traffic.NewStream(client.NS, to, streamRate)
		if err != nil {
			t.Fatal(err)
		}
		apart := f()
		before := s.Received()
		eventually(t, func() error {
			if n := s.Received() - before; n < 3*streamRate {
				return fmt.Errorf("%d packets arrived after the change", n)
			}
			return nil
		})
		got, err := s.Finish()
		if err != nil {
			t.Fatal(err)
		}
		most := uint64(0)
		if fabric {
			most = min(streamRate, got.Sent/20) + uint64(apart.Seconds()*streamRate)
		}
		t.Logf("sent=%d lost=%d twice=%d apart=%s", got.Sent, got.Lost(), got.Twice, apart)
		if got.Sent < streamRate || got.Twice > 0 || got.Lost() > most {
			t.Errorf("of %d packets %d were lost, at most %d may be, and %d came twice", got.Sent, got.Lost(), most, got.Twice)
		}
	}
	stream(fabric, change)
	stream(false, func() time.Duration { return 0 })
	broken, exchanges, retransmits := open.Finish()
	t.Logf("connections broken=%d exchanges=%d retransmits=%d", len(broken), exchanges, retransmits)
	if len(broken) > 0 || exchanges < 100 {
		t.Errorf("%d connections broke, after %d exchanges: %v", len(broken), exchanges, errors.Join(broken...))
	}
}

// bulk sends some megabytes, in segments of many packets.
func bulk(t *testing.T, from, to *netns.NS, addr netip.Addr) {
	t.Helper()
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	at := netip.AddrPortFrom(addr, 7200)
	servers := &traffic.Servers{}
	defer servers.Close()
	if err := servers.Echo(to, at, model.TCP); err != nil {
		t.Fatal(err)
	}
	err := from.Do(func() error {
		conn, err := net.Dial("tcp", at.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(4 * patience))
		go conn.Write(data)
		got := make([]byte, len(data))
		if _, err := io.ReadFull(conn, got); err != nil {
			return err
		}
		if !bytes.Equal(got, data) {
			return errors.New("data came back changed")
		}
		return nil
	})
	if err != nil {
		t.Errorf("bulk to %s: %v", addr, err)
	}
}

// refused sends a datagram and returns the error that comes back.
func refused(to netip.AddrPort) error {
	conn, err := net.Dial("udp", to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write([]byte("hello?")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 100))
	return err
}

// hops sends a datagram with hop limit 64 and checks the hop limit at the receiver.
func hops(t *testing.T, from, to *netns.NS, addr netip.Addr, want int) {
	t.Helper()
	level, receive, send, kind := unix.IPPROTO_IP, unix.IP_RECVTTL, unix.IP_TTL, unix.IP_TTL
	domain := unix.AF_INET
	if addr.Is6() {
		level, receive, send, kind = unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, unix.IPV6_UNICAST_HOPS, unix.IPV6_HOPLIMIT
		domain = unix.AF_INET6
	}
	var fd int
	err := to.Do(func() (err error) {
		if fd, err = unix.Socket(domain, unix.SOCK_DGRAM, 0); err != nil {
			return err
		}
		return errors.Join(unix.SetsockoptInt(fd, level, receive, 1), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(patience.Seconds())}),
			unix.Bind(fd, socketAddress(addr, 7201)))
	})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	err = from.Do(func() error {
		out, err := unix.Socket(domain, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(out)
		return errors.Join(unix.SetsockoptInt(out, level, send, 64), unix.Sendto(out, []byte("hop"), 0, socketAddress(addr, 7201)))
	})
	if err != nil {
		t.Fatal(err)
	}
	oob := make([]byte, 100)
	_, n, _, _, err := unix.Recvmsg(fd, make([]byte, 100), oob, 0)
	if err != nil {
		t.Errorf("a datagram to %s: %v", addr, err)
		return
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 || int(messages[0].Header.Type) != kind || int(messages[0].Data[0]) != want {
		t.Errorf("to %s: want %d hops left, got %v, %v", addr, want, messages, err)
	}
}

func socketAddress(a netip.Addr, port int) unix.Sockaddr {
	if a.Is6() {
		return &unix.SockaddrInet6{Port: port, Addr: a.As16()}
	}
	return &unix.SockaddrInet4{Port: port, Addr: a.As4()}
}

// expires sends a datagram of a known flow with a small hop limit, and expects an
// ICMP error from the node where the limit ends.
func expires(t *testing.T, from *netns.NS, to netip.Addr, ttl int, node []netip.Addr) {
	t.Helper()
	err := from.Do(func() error {
		level, send, receive, domain := unix.IPPROTO_IP, unix.IP_TTL, unix.IP_RECVERR, unix.AF_INET
		if to.Is6() {
			level, send, receive, domain = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_RECVERR, unix.AF_INET6
		}
		fd, err := unix.Socket(domain, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		err = errors.Join(unix.SetsockoptInt(fd, level, receive, 1), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(patience.Seconds())}),
			unix.Connect(fd, socketAddress(to, 7100)))
		if err != nil {
			return err
		}
		buffer := make([]byte, 200)
		if _, err := unix.Write(fd, []byte("who am I")); err != nil {
			return err
		}
		if _, err := unix.Read(fd, buffer); err != nil {
			return fmt.Errorf("wait for an answer: %w", err)
		}
		if err := unix.SetsockoptInt(fd, level, send, ttl); err != nil {
			return err
		}
		if _, err := unix.Write(fd, []byte("who am I")); err != nil {
			return err
		}
		if n, err := unix.Read(fd, buffer); !errors.Is(err, unix.EHOSTUNREACH) {
			return fmt.Errorf("read %q, %v, want that the host cannot be reached", buffer[:max(n, 0)], err)
		}
		oob := make([]byte, 300)
		_, n, _, _, err := unix.Recvmsg(fd, buffer, oob, unix.MSG_ERRQUEUE)
		if err != nil {
			return fmt.Errorf("read the error: %w", err)
		}
		for _, a := range node {
			if a.Is6() == to.Is6() && bytes.Contains(oob[:n], a.AsSlice()) {
				return nil
			}
		}
		return fmt.Errorf("none of %v is in the error % x", node, oob[:n])
	})
	if err != nil {
		t.Errorf("a datagram to %s with %d hops: %v", to, ttl, err)
	}
}
