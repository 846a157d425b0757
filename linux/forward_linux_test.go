// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// sent counts the packets that reached a pod through the host end of its veth pair. It excludes
// those that another pod's program redirected.
func (l *lab) sent(pod string) int {
	l.t.Helper()
	return l.transmitted(link.HostName(model.MakeEndpointID(pod, "eth0")))
}

// transmitted counts the packets that an interface of the node sent.
func (l *lab) transmitted(name string) (n int) {
	l.t.Helper()
	l.must(l.node.Do(func() error {
		// sysfs shows the network namespace of its mount; proc shows the current one.
		text, err := os.ReadFile("/proc/thread-self/net/dev")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) > 10 && fields[0] == name+":" {
				n, err = strconv.Atoi(fields[10])
				return err
			}
		}
		return fmt.Errorf("no interface %s", name)
	}))
	return n
}

// straight runs f and checks that no packet reached the pods through the host stack.
func (l *lab) straight(f func(), pods ...string) {
	l.t.Helper()
	ends := l.hostEnds(pods...)
	f()
	for i, p := range pods {
		for _, frame := range ends[i].handedOver() {
			l.t.Errorf("a packet to %s went through the stack: % x", p, frame[:min(len(frame), 80)])
		}
	}
}

// hostEnds opens the host ends of the pods' veth pairs.
func (l *lab) hostEnds(pods ...string) (ends []*wire) {
	l.t.Helper()
	for _, p := range pods {
		ends = append(ends, l.wire(l.node, link.HostName(model.MakeEndpointID(p, "eth0"))))
	}
	return ends
}

// handedOver returns the frames that the host stack has sent by an interface since the last
// call. It leaves out packets that the host sends on its own at any time: multicast and
// neighbour discovery.
func (w *wire) handedOver() (frames [][]byte) {
	w.t.Helper()
	buf := make([]byte, 1<<17)
	for {
		n, from, err := unix.Recvfrom(w.fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) {
			return frames
		}
		if err != nil {
			w.t.Fatalf("read a frame: %v", err)
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype == unix.PACKET_OUTGOING && !ownAccord(buf[:n]) {
			frames = append(frames, bytes.Clone(buf[:n]))
		}
	}
}

// ownAccord reports whether a frame is multicast, ARP or Neighbour Discovery.
func ownAccord(frame []byte) bool {
	const header, fixed6, nextHeader, icmpv6 = 14, 40, 6, 58
	switch kind := binary.BigEndian.Uint16(frame[12:]); {
	case frame[0]&1 != 0 || kind == unix.ETH_P_ARP:
		return true
	case kind == unix.ETH_P_IPV6 && len(frame) > header+fixed6 && frame[header+nextHeader] == icmpv6:
		message := frame[header+fixed6]
		return 133 <= message && message <= 137 // RFC 4861, section 4
	}
	return false
}

// Packets between pods of one node use the fast path: connections with large segments,
// datagrams, fragments, echoes and errors about them.
func TestPodToPodBypassesTheHostStack(t *testing.T) {
	l := newLab(t)
	a, b := l.pod("a", 11), l.pod("b", 12)
	l.echo(b, 80)
	l.apply(isolate("b", model.Ingress, accept(pods("a"))), isolate("a", model.Egress, accept(pods("b"))))
	for _, to := range []string{"10.1.0.12", "fd01::c"} {
		l.straight(func() {
			l.allowed(a, "tcp", to, 80)
			l.allowed(a, "udp", to, 80)
			l.transfer(a, to)
			l.must(a.Do(func() error { return datagram(to, 80, 1900) }))
			if err := a.Do(func() error { return datagram(to, 81, 100) }); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s: a closed port says %v, want that it is refused", to, err)
			}
			l.must(a.Do(func() error { return ping(to) }))
			l.allowed(b, "tcp", to, 80) // itself
		}, "a", "b")
	}
}

// transfer sends some megabytes in both directions, which the kernel moves in segments larger
// than the MTU.
func (l *lab) transfer(from *netns.NS, to string) {
	l.t.Helper()
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	l.must(from.Do(func() error {
		c, err := net.Dial("tcp", net.JoinHostPort(to, "80"))
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(20 * time.Second))
		go c.Write(data)
		got := make([]byte, len(data))
		if _, err := io.ReadFull(c, got); err != nil {
			return err
		}
		if !bytes.Equal(got, data) {
			return errors.New("data came back changed")
		}
		return nil
	}))
}

// datagram sends a datagram of size bytes, which may exceed the MTU, and waits for the answer.
func datagram(to string, port, size int) error {
	c, err := net.Dial("udp", net.JoinHostPort(to, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write(make([]byte, size)); err != nil {
		return err
	}
	n, err := c.Read(make([]byte, 2*size))
	if err == nil && n != size {
		err = fmt.Errorf("sent %d bytes, got %d back", size, n)
	}
	return err
}

// ping sends an echo request and waits for the reply.
func ping(to string) error {
	network, request, reply := "ip4:icmp", byte(8), byte(0)
	if strings.Contains(to, ":") {
		network, request, reply = "ip6:ipv6-icmp", 128, 129
	}
	c, err := net.Dial(network, to)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	message := []byte{request, 0, 0, 0, 0, 7, 0, 1}
	if request == 8 {
		message[2], message[3] = 0xf7, 0xf7 // checksum; the kernel computes that of ICMPv6
	}
	if _, err := c.Write(message); err != nil {
		return err
	}
	for buf := make([]byte, 100); ; {
		n, err := c.Read(buf)
		if err != nil {
			return fmt.Errorf("wait for an echo reply: %w", err)
		}
		at := 0
		if buf[0]>>4 == 4 { // only IPv4 sockets return the header
			at = 20
		}
		if n > at && buf[at] == reply {
			return nil
		}
	}
}

// When an address moves to another pod, policy decides again, even in the middle of a flow. The
// new pod never gets packets of the old one by an old verdict.
func TestAddressOfAnotherPod(t *testing.T) {
	l := newLab(t)
	a, b := l.pod("a", 11), l.pod("b", 12)
	l.echo(b, 80)
	l.apply()
	var flows []net.Conn
	for _, to := range []string{"10.1.0.12", "fd01::c"} {
		var c net.Conn
		l.must(a.Do(func() (err error) { c, err = net.Dial("udp", net.JoinHostPort(to, "80")); return err }))
		defer c.Close()
		l.must(traffic.Exchange(c, patience))
		flows = append(flows, c)
	}
	l.delete("b")
	for _, c := range flows {
		if err := traffic.Exchange(c, silence); err == nil {
			t.Errorf("%s: a server answers for a pod that is gone", c.RemoteAddr())
		}
	}
	l.pods["c"] = l.namespace("c")
	l.must(l.add("c", 12))
	l.echo(l.pods["c"], 80)
	for _, c := range flows {
		if err := traffic.Exchange(c, silence); err == nil {
			t.Errorf("%s: a new pod is reached before it has a policy", c.RemoteAddr())
		}
	}
	l.apply(isolate("c", model.Ingress, accept(pods("nobody"))))
	for _, c := range flows {
		if err := traffic.Exchange(c, silence); err == nil {
			t.Errorf("%s: a flow to the old pod reaches the new one, whose policy denies it", c.RemoteAddr())
		}
	}
	l.apply()
	for _, c := range flows {
		l.must(traffic.Exchange(c, patience))
	}
}

// A pod receives a direct frame with the MAC addresses of its own link. A listener on the
// sender's link sees the frame as it was sent, although both share its memory.
func TestFastPathFramesEqualHostFrames(t *testing.T) {
	l := newLab(t)
	a, b := l.pod("a", 11), l.pod("b", 12)
	l.echo(b, 80)
	l.apply()
	hostA, hostB := link.HostName(model.MakeEndpointID("a", "eth0")), link.HostName(model.MakeEndpointID("b", "eth0"))
	received, sent := l.capture(b, "eth0"), l.capture(l.node, hostA)
	l.allowed(a, "udp", "10.1.0.12", 80)
	l.addressed(received, l.mac(b, "eth0"), l.mac(l.node, hostB))
	l.addressed(sent, l.mac(l.node, hostA), l.mac(a, "eth0"))
}

// capture receives the frames of an interface, before programs run.
func (l *lab) capture(where *netns.NS, name string) (fd int) {
	l.t.Helper()
	const all = 0x0300 // ETH_P_ALL, network order
	l.must(where.Do(func() error {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		if fd, err = syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW, 0); err != nil {
			return err
		}
		l.t.Cleanup(func() { syscall.Close(fd) })
		return syscall.Bind(fd, &syscall.SockaddrLinklayer{Protocol: all, Ifindex: i.Index})
	}))
	l.must(syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &syscall.Timeval{Sec: int64(patience.Seconds())}))
	return fd
}

// addressed reads the next IPv4 frame and checks its Ethernet header.
func (l *lab) addressed(fd int, to, from net.HardwareAddr) {
	l.t.Helper()
	frame := make([]byte, 200)
	n := 0
	for n < 34 || !bytes.Equal(frame[12:14], []byte{8, 0}) {
		var err error
		n, _, err = syscall.Recvfrom(fd, frame, 0)
		l.must(err)
	}
	if !bytes.Equal(frame[:6], to) || !bytes.Equal(frame[6:12], from) {
		l.t.Errorf("the frame is % x, want it to %s from %s", frame[:min(n, 34)], to, from)
	}
}

func (l *lab) mac(where *netns.NS, name string) (mac net.HardwareAddr) {
	l.t.Helper()
	l.must(where.Do(func() error {
		i, err := net.InterfaceByName(name)
		if err == nil {
			mac = i.HardwareAddr
		}
		return err
	}))
	return mac
}
