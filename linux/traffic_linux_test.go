// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/test/netns"
)

const (
	farAddr4 = "203.0.113.2"
	farAddr6 = "2001:db8:f::2"
	farMTU   = 1400
)

// far creates a host behind outside, over a link with a smaller MTU.
func (l *lab) far() *netns.NS {
	l.t.Helper()
	ns := l.namespace("far")
	l.must(netns.Connect(netns.End{NS: l.outside, Name: "far", MTU: farMTU}, netns.End{NS: ns, Name: "eth0", MTU: farMTU}))
	l.must(l.outside.Do(func() error {
		return errors.Join(addresses("far", "203.0.113.1/24", "2001:db8:f::1/64"), netns.Forward())
	}))
	l.must(ns.Do(func() error {
		return errors.Join(addresses("eth0", farAddr4+"/24", farAddr6+"/64"),
			route("0.0.0.0/0", "203.0.113.1"), route("::/0", "2001:db8:f::1"))
	}))
	l.must(l.node.Do(func() error {
		return errors.Join(route("203.0.113.0/24", outsideAddr4), route("2001:db8:f::/64", outsideAddr6))
	}))
	return ns
}

func block(cidr string) model.Peer {
	return model.Peer{Kind: model.PeerBlock, Block: model.IPBlock{CIDR: netip.MustParsePrefix(cidr)}}
}

// Datagrams of sizes around every limit arrive complete, in fragments if necessary, between
// pods and through the host stack. Fragments of denied datagrams do not arrive.
func TestDatagramsOfAllSizes(t *testing.T) {
	l := newLab(t)
	a, b := l.pod("a", 11), l.pod("b", 12)
	for _, ns := range []*netns.NS{b, l.outside} {
		l.echo(ns, 90)
		l.echo(ns, 91)
	}
	udp90 := model.PortMatch{Protocol: model.UDP, First: 90, Last: 90}
	l.apply(isolate("a", model.Egress, accept(pods("b"), udp90), accept(block(outsideAddr4+"/32"), udp90), accept(block(outsideAddr6+"/128"), udp90)),
		isolate("a", model.Ingress), isolate("b", model.Ingress, accept(pods("a"), udp90)), isolate("b", model.Egress))
	for _, to := range []string{"10.1.0.12", "fd01::c", outsideAddr4, outsideAddr6} {
		overhead, most := 28, 65507
		if strings.Contains(to, ":") {
			overhead, most = 48, 65527
		}
		for _, size := range []int{0, 1, 1280 - overhead, 1500 - overhead - 1, 1500 - overhead, 1500 - overhead + 1, 2*1480 - 8, 8972, most} {
			if err := a.Do(func() error { return whole(to, 90, size) }); err != nil {
				t.Errorf("%d bytes to %s: %v", size, to, err)
			}
		}
		if err := a.Do(func() error { return fragmentsTo(to, 91) }); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("fragments to the denied port of %s: want silence, got %v", to, err)
		}
	}
}

// whole sends a datagram of size bytes and waits for its echo.
func whole(to string, port, size int) error {
	c, err := net.Dial("udp", net.JoinHostPort(to, fmt.Sprint(port)))
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write(make([]byte, size)); err != nil {
		return err
	}
	n, err := c.Read(make([]byte, 1<<16))
	if err == nil && n != size {
		err = fmt.Errorf("sent %d bytes, got %d back", size, n)
	}
	return err
}

// upload sends 4 MiB over a connection and reads them back.
func upload(to string, port int) error {
	c, err := net.Dial("tcp", net.JoinHostPort(to, fmt.Sprint(port)))
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		sent <- err
	}()
	got := make([]byte, len(data))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if !bytes.Equal(got, data) {
		return errors.New("data came back changed")
	}
	return <-sent
}

// fragmentsTo sends a datagram in fragments and waits briefly for an answer.
func fragmentsTo(to string, port int) error {
	c, err := net.Dial("udp", net.JoinHostPort(to, fmt.Sprint(port)))
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write(make([]byte, 5000)); err != nil {
		return err
	}
	c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	_, err = c.Read(make([]byte, 1))
	return err
}

// Errors about a pod's flows reach it although its policy denies all ingress: a remote router
// reports that packets are too big, a host reports a closed port. Programs see large TCP
// segments before they are segmented.
func TestErrorsReachIsolatedPods(t *testing.T) {
	l := newLab(t)
	a := l.pod("a", 11)
	far := l.far()
	l.echo(far, 80)
	l.apply(isolate("a", model.Ingress), isolate("a", model.Egress, accept(block("203.0.113.0/24")), accept(block("2001:db8:f::/64"))))
	for _, to := range []string{farAddr4, farAddr6} {
		before := l.received("a")
		l.must(a.Do(func() error { return upload(to, 80) }))
		// 4 MiB were sent, and as many acknowledged.
		if n := l.received("a") - before; n > 4<<20/farMTU/2 {
			t.Errorf("%s: the pod sent %d packets, its segments are not larger than the MTU", to, n)
		}
		if err := a.Do(func() error { return refused(to) }); err != nil {
			t.Errorf("datagram to a closed port of %s: %v", to, err)
		}
		pod := "10.1.0.11"
		if to == farAddr6 {
			pod = "fd01::b"
		}
		l.denied(far, "udp", pod, 80)
	}
}

// refused sends a datagram to a closed port and waits for the error.
func refused(to string) error {
	c, err := net.Dial("udp", net.JoinHostPort(to, "9"))
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte("hello?")); err != nil {
		return err
	}
	if _, err := c.Read(make([]byte, 8)); !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("want %w, got %v", syscall.ECONNREFUSED, err)
	}
	return nil
}

// received counts the bytes that a pod has sent, at the host end of its veth pair.
func (l *lab) received(pod string) (n uint64) {
	l.t.Helper()
	l.must(l.node.Do(func() error {
		host, err := netlink.LinkByName(link.HostName(model.MakeEndpointID(pod, "eth0")))
		if err == nil {
			n = host.Attrs().Statistics.RxPackets
		}
		return err
	}))
	return n
}

// packet sends a packet of an IP protocol and reports whether it arrives in time.
func (l *lab) packet(from, to *netns.NS, proto int, src, dst string, payload []byte, patience time.Duration) bool {
	l.t.Helper()
	network := fmt.Sprintf("ip4:%d", proto)
	if strings.Contains(dst, ":") {
		network = fmt.Sprintf("ip6:%d", proto)
	}
	var in, out *net.IPConn
	l.must(to.Do(func() (err error) {
		in, err = net.ListenIP(network, &net.IPAddr{IP: net.ParseIP(dst)})
		return err
	}))
	defer in.Close()
	l.must(from.Do(func() (err error) {
		out, err = net.DialIP(network, &net.IPAddr{IP: net.ParseIP(src)}, &net.IPAddr{IP: net.ParseIP(dst)})
		return err
	}))
	defer out.Close()
	_, err := out.Write(payload)
	l.must(err)
	in.SetDeadline(time.Now().Add(patience))
	n, _, err := in.ReadFromIP(make([]byte, 2048))
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		l.t.Fatal(err)
	}
	return n == len(payload)
}

// Policy distinguishes SCTP by its ports, and protocols without ports by their addresses.
func TestProtocolsWithoutSockets(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a, b := l.pod("a", 11), l.pod("b", 12)
	init := func(port byte) []byte { return append([]byte{0x80, 0, 0x1b, port}, make([]byte, 24)...) }
	const sctp, gre = 132, 47
	expect := func(want bool, from *netns.NS, proto int, src, dst string, payload []byte) {
		t.Helper()
		wait := silence
		if want {
			wait = patience
		}
		if got := l.packet(from, b, proto, src, dst, payload, wait); got != want {
			t.Errorf("protocol %d from %s to %s arrives: %t, want %t", proto, src, dst, got, want)
		}
	}
	l.apply(isolate("b", model.Ingress, accept(pods("a"), model.PortMatch{Protocol: model.SCTP, First: 0x1b01, Last: 0x1b01})))
	for _, c := range []struct{ pod, dst, outside string }{{"10.1.0.11", "10.1.0.12", outsideAddr4}, {"fd01::b", "fd01::c", outsideAddr6}} {
		expect(true, a, sctp, c.pod, c.dst, init(1))
		expect(false, a, sctp, c.pod, c.dst, init(2))
		expect(false, l.outside, sctp, c.outside, c.dst, init(1))
		expect(false, a, gre, c.pod, c.dst, make([]byte, 8))
	}
	l.apply(isolate("b", model.Ingress, accept(pods("a"))))
	for _, c := range []struct{ pod, dst, outside string }{{"10.1.0.11", "10.1.0.12", outsideAddr4}, {"fd01::b", "fd01::c", outsideAddr6}} {
		expect(true, a, gre, c.pod, c.dst, make([]byte, 8))
		expect(true, a, sctp, c.pod, c.dst, init(2))
		expect(false, l.outside, gre, c.outside, c.dst, make([]byte, 8))
	}
}

// A VLAN tag does not let a pod bypass policy.
func TestTaggedFramesArePoliced(t *testing.T) {
	l := newLab(t)
	a, b := l.pod("a", 11), l.pod("b", 12)
	var heard net.PacketConn
	l.must(b.Do(func() (err error) {
		heard, err = net.ListenPacket("udp", "10.1.0.12:90")
		return err
	}))
	defer heard.Close()
	arrives := func(tag []byte, patience time.Duration) bool {
		l.must(a.Do(func() error { return sendFrame(tag) }))
		heard.SetDeadline(time.Now().Add(patience))
		_, _, err := heard.ReadFrom(make([]byte, 100))
		return err == nil
	}
	l.apply()
	if !arrives(nil, patience) {
		t.Fatal("a plain frame does not arrive: the frame is not what it should be")
	}
	l.apply(isolate("b", model.Ingress))
	for _, tag := range [][]byte{nil, {0x81, 0, 0, 5}, {0x81, 0, 0, 0}, {0x88, 0xa8, 0, 5}, {0x88, 0xa8, 0, 5, 0x81, 0, 0, 6}} {
		if arrives(tag, 250*time.Millisecond) {
			t.Errorf("a frame with tag %x arrives under a policy that denies it", tag)
		}
	}
}

// sendFrame sends a datagram from 10.1.0.11 to 10.1.0.12 port 90 as a frame, with a tag after
// the MAC addresses.
func sendFrame(tag []byte) error {
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	neighbours, err := link.Whole(func() ([]netlink.Neigh, error) { return netlink.NeighList(eth0.Attrs().Index, netlink.FAMILY_V4) })
	if err != nil || len(neighbours) == 0 {
		return fmt.Errorf("find the gateway: %d neighbours, %w", len(neighbours), err)
	}
	eth := &layers.Ethernet{SrcMAC: eth0.Attrs().HardwareAddr, DstMAC: neighbours[0].HardwareAddr, EthernetType: layers.EthernetTypeIPv4}
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{10, 1, 0, 11}, DstIP: net.IP{10, 1, 0, 12}}
	udp := &layers.UDP{SrcPort: 5000, DstPort: 90}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		return err
	}
	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buf, opts, eth, ip, udp, gopacket.Payload("tagged")); err != nil {
		return err
	}
	plain := buf.Bytes()
	frame := append(append(append([]byte(nil), plain[:12]...), tag...), plain[12:]...)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: eth0.Attrs().Index, Halen: 6})
}
