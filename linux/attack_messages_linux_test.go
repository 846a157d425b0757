// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/linux"
)

// groupMAC returns the MAC of an IPv6 multicast address.
func groupMAC(group string) net.HardwareAddr {
	a := netip.MustParseAddr(group).As16()
	return append(net.HardwareAddr{0x33, 0x33}, a[12:]...)
}

// linkLocal returns the link-local address that an interface derives from its MAC.
func linkLocal(mac net.HardwareAddr) string {
	return net.IP{0xfe, 0x80, 0, 0, 0, 0, 0, 0, mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]}.String()
}

// message returns a message of ICMPv6 that no router forwards. Those of multicast listeners have the router alert that bridges ask for.
func message(from *wire, to net.HardwareAddr, src, dst string, kind byte, body ...byte) []byte {
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, 0)}
	ip := ipHeader(src, dst, layers.IPProtocolICMPv6).(*layers.IPv6)
	if kind >= 133 && kind <= 137 {
		ip.HopLimit = 255
		return packet(from.mac, to, ip, icmp, gopacket.Payload(body))
	}
	frame := packet(from.mac, to, ip, icmp, gopacket.Payload(body))
	alert := []byte{58, 0, 5, 2, 0, 0, 1, 0}
	ip.HopLimit, ip.NextHeader = 1, layers.IPProtocolIPv6HopByHop
	return packet(from.mac, to, ip, gopacket.Payload(append(alert, frame[54:]...)))
}

// question returns an ARP request, without the padding of Ethernet.
func question(from *wire, to net.HardwareAddr, sender, target string) []byte {
	return serialize(&layers.Ethernet{SrcMAC: from.mac, DstMAC: to, EthernetType: layers.EthernetTypeARP},
		&layers.ARP{AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: layers.ARPRequest,
			SourceHwAddress: from.mac, SourceProtAddress: net.ParseIP(sender).To4(), DstHwAddress: make([]byte, 6), DstProtAddress: net.ParseIP(target).To4()})[:42]
}

// Pods on a bridge resolve each other by ARP and neighbour discovery, whatever policy says. These messages carry no data from one
// pod to another, and messages between hosts and routers are for hosts and routers only.
func TestAttackDataInMessages(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, func(c *linux.Config) { c.PolicyOnly, c.StateDir = true, "bridged" })
	g.must(g.node.Do(func() error { return sysctl("bridge/bridge-nf-call-ip6tables", "0") })) // which cuts what is behind a packet
	four, six, wa, wc := addressSets[0], addressSets[1], g.wa, g.wc
	target, own, local := net.ParseIP(six.c), net.ParseIP(six.a), linkLocal(wa.mac)
	solicit := append(make([]byte, 4), target...)
	advertise := append([]byte{0x20, 0, 0, 0}, own...)
	v := &volley{l: g.lab}
	for _, to := range []net.HardwareAddr{wc.mac, {255, 255, 255, 255, 255, 255}} {
		v.try(wa, wc, "data behind an ARP request to "+to.String(), func(w string) []byte { return append(question(wa, to, four.a, four.c), w...) })
	}
	for _, dst := range []string{six.c, "ff02::1:ff00:d", "ff02::1"} {
		to := wc.mac
		if net.ParseIP(dst).IsMulticast() {
			to = groupMAC(dst)
		}
		v.try(wa, wc, "data behind a solicitation to "+dst, func(w string) []byte { return append(message(wa, to, six.a, dst, 135, solicit...), w...) })
		v.try(wa, wc, "data behind an advertisement to "+dst, func(w string) []byte { return append(message(wa, to, six.a, dst, 136, advertise...), w...) })
		v.try(wa, wc, "data as the target of a solicitation to "+dst, func(w string) []byte {
			return message(wa, to, six.a, dst, 135, append(make([]byte, 4), w+"-end"...)...)
		})
	}
	for _, dst := range []string{"ff02::1", "ff02::2", "ff02::16", linkLocal(wc.mac)} {
		to := wc.mac
		if net.ParseIP(dst).IsMulticast() {
			to = groupMAC(dst)
		}
		v.try(wa, wc, "data behind a router solicitation to "+dst, func(w string) []byte { return append(message(wa, to, local, dst, 133, 0, 0, 0, 0), w...) })
		for _, kind := range []byte{130, 131, 132, 143} {
			v.try(wa, wc, "data in a message of multicast listeners to "+dst, func(w string) []byte {
				return message(wa, to, local, dst, kind, append(make([]byte, 20), w...)...)
			})
		}
	}
	for _, f := range addressSets {
		v.held(g.controls(f)...)
	}
	for what, frame := range map[string][]byte{
		"a solicitation":   message(wa, groupMAC("ff02::1:ff00:d"), six.a, "ff02::1:ff00:d", 135, append(solicit, linkOption(1, wa.mac)...)...),
		"an advertisement": message(wa, wc.mac, six.a, six.c, 136, append(advertise, linkOption(2, wa.mac)...)...),
		"an ARP request":   question(wa, wc.mac, four.a, four.c),
	} {
		if wa.send(frame); !wc.await(string(frame)) {
			t.Errorf("%s does not arrive", what)
		}
	}
	arp := question(wa, wc.mac, four.a, four.a) // of its own address, as a host does that has moved
	if wa.send(append(arp, make([]byte, 18)...)); !wc.await(string(arp)) {
		t.Error("an ARP request with the padding of Ethernet does not arrive")
	}
}

// linkOption returns the option of neighbour discovery with a MAC.
func linkOption(kind byte, mac net.HardwareAddr) []byte { return append([]byte{kind, 1}, mac...) }

// Fields of ARP and neighbour discovery that receivers ignore carry no data either, nor do questions about other addresses.
func TestAttackDataInFields(t *testing.T) {
	t.Parallel()
	_, wa, wc := onBridge(t)
	four, six := addressSets[0], addressSets[1]
	word := [4]byte{0xda, 0x7a, 0xda, 0x7a}
	with := func(frame []byte, at int) []byte {
		copy(frame[at:], word[:])
		return frame
	}
	mac := net.HardwareAddr{0xda, 0x7a, 0xda, 0x7a, 0xda, 0x7a}
	target := net.ParseIP(six.b)
	dad := func(about string, rest ...byte) []byte {
		return message(wa, wc.mac, "::", "ff02::1", 135, append(append(make([]byte, 4), net.ParseIP(about)...), rest...)...)
	}
	frames := [][]byte{
		question(wa, wc.mac, four.a, "218.122.218.122"),
		with(question(wa, wc.mac, four.a, four.b), 32),
		message(wa, wc.mac, six.a, six.b, 135, append(word[:], target...)...),
		message(wa, wc.mac, six.a, six.b, 136, append([]byte{0x1a, 0x7a, 0xda, 0x7a}, net.ParseIP(six.a)...)...),
		message(wa, wc.mac, six.a, six.b, 135, append(append(make([]byte, 4), target...), linkOption(14, mac)...)...),
		message(wa, wc.mac, six.a, six.b, 135, append(append(make([]byte, 4), target...), linkOption(5, mac)...)...),
		dad(six.a, linkOption(14, mac)...),
	}
	for _, f := range frames {
		attacks.tried.Add(1)
		wa.send(f)
	}
	last := question(wa, wc.mac, four.a, four.b)
	if wa.send(last); !wc.await(string(last)) {
		t.Fatal("an ARP request does not arrive")
	}
	for _, secret := range []string{string(word[:]), string(word[1:])} {
		if wc.saw(secret) {
			attacks.through.Add(1)
			t.Errorf("got through: % x", secret)
		}
	}
}

// A bridge that has heard a multicast router forwards only to the listeners of a group, and forgets those that do not answer a query
// about it. Pod a poses as a router, and asks about the group by which others resolve pod c, where c does not hear it.
func TestAttackMulticastQuery(t *testing.T) {
	t.Parallel()
	l, wa, wb := onBridge(t)
	c, six := l.pod("c", 13), addressSets[1]
	l.apply()
	for l.idle() {
	}
	wc := l.wire(c, "eth0")
	const group = "ff02::1:ff00:d"
	query := func(dst, about string) []byte { // answers have 10 ms
		return message(wa, groupMAC(dst), linkLocal(wa.mac), dst, 130, append([]byte{0, 10, 0, 0}, net.ParseIP(about).To16()...)...)
	}
	for _, q := range [][]byte{query("ff02::1", "::"), query("ff02::9999", group)} {
		for range 10 {
			attacks.tried.Add(1)
			wa.send(q)
			time.Sleep(10 * time.Millisecond)
		}
	}
	solicit := message(wb, groupMAC(group), six.b, group, 135, append(make([]byte, 4), net.ParseIP(six.c)...)...)
	if wb.send(solicit); !wc.await(string(solicit)) {
		attacks.through.Add(1)
		t.Error("pod c does not get a question for its MAC: the bridge has forgotten its group")
	}
	router := l.wire(l.running("router", 14), "eth0") // no pod that the backend knows
	genuine := message(router, groupMAC("ff02::1"), linkLocal(router.mac), "ff02::1", 130, append([]byte{0, 10, 0, 0}, make([]byte, 16)...)...)
	for began := time.Now(); !wc.saw(string(genuine)); time.Sleep(time.Millisecond) {
		router.send(genuine) // its interface may not be forwarding yet
		if time.Since(began) > patience {
			t.Fatal("pod c does not get the query of a router")
		}
	}
}
