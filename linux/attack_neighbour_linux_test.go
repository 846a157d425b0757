// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/test/netns"
)

// onBridge returns a node with pods a and b on a bridge of another plugin, and their wires.
func onBridge(t *testing.T) (l *lab, wa, wb *wire) {
	t.Helper()
	l = newLabWith(t, func(c *linux.Config) { c.PolicyOnly, c.StateDir = true, "bridged" })
	a, b := l.pod("a", 11), l.pod("b", 12)
	l.apply()
	for l.idle() {
	}
	return l, l.wire(a, "eth0"), l.wire(b, "eth0")
}

// On a bridge, pods hear each other's neighbour discovery. A pod can claim only its own address, also if its policy
// allows it all ICMP.
func TestAttackNeighbourOnBridge(t *testing.T) {
	t.Parallel()
	_, wa, wb := onBridge(t)
	f := addressSets[1]
	// The end of a message is its target, and the MAC that it claims for it.
	claim := func(target string, mac net.HardwareAddr) []byte {
		return append(append(bytes.Clone(net.ParseIP(target)), 2, 1), mac...)
	}
	advertise := func(dst string, claim []byte) {
		ip := ipHeader(f.a, dst, layers.IPProtocolICMPv6).(*layers.IPv6)
		ip.HopLimit = 255
		to := wb.mac
		if net.ParseIP(dst).IsMulticast() {
			to = net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
		}
		icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeNeighborAdvertisement, 0)}
		wa.send(packet(wa.mac, to, ip, icmp, gopacket.Payload(append([]byte{0x20, 0, 0, 0}, claim...))))
	}
	forged := map[string][]byte{"the gateway's address": claim(gateway6, wa.mac), "another pod's address": claim(f.c, wa.mac), "its own address at another MAC": claim(f.a, wb.mac)}
	for _, dst := range []string{f.b, "ff02::1"} {
		for _, c := range forged {
			attacks.tried.Add(1)
			advertise(dst, c)
		}
	}
	for began := time.Now(); !wb.saw(string(claim(f.a, wa.mac))); time.Sleep(time.Millisecond) {
		advertise(f.b, claim(f.a, wa.mac))
		if time.Since(began) > patience {
			t.Fatal("an advertisement of the pod's own address does not arrive")
		}
	}
	for what, c := range forged {
		if wb.saw(string(c)) {
			attacks.through.Add(1)
			t.Errorf("got through: an advertisement of %s", what)
		}
	}
}

// A host that gets an address asks first whether another host has it. A pod that asks for the same address at that time claims it.
// Another pod on the bridge gets its address all the same, as does the node.
func TestAttackDuplicateAddress(t *testing.T) {
	t.Parallel()
	l, wa, wb := onBridge(t)
	const group = "ff02::1:ff00:77"
	ask := func(target string) []byte {
		return message(wa, groupMAC(group), "::", group, 135, append(make([]byte, 4), net.ParseIP(target)...)...)
	}
	probe := func(target string) []byte {
		return question(wa, net.HardwareAddr{255, 255, 255, 255, 255, 255}, "0.0.0.0", target)
	}
	probed := probe("10.1.0.77")
	for wanted, by := range map[string]struct {
		ns     *netns.NS
		device string
	}{"fd01::77": {l.pods["b"], "eth0"}, "fd01::1:0:77": {l.node, bridgeName}} {
		attacks.tried.Add(2)
		asked, tentative := ask(wanted), l.begin(by.ns, by.device, wanted+"/64")
		for began := time.Now(); tentative(); time.Sleep(5 * time.Millisecond) {
			wa.send(asked)
			wa.send(probed)
			if time.Since(began) > patience {
				t.Fatal("the kernel does not decide whether the address is free")
			}
		}
		if l.taken(by.ns, by.device, wanted) || wb.saw(string(asked)) {
			attacks.through.Add(1)
			t.Errorf("the host does not get its address %s: the pod claimed it", wanted)
		}
	}
	own := probe("10.1.0.11")
	if wa.send(own); !wb.await(string(own)) {
		t.Error("a question for its own address does not arrive")
	}
	if wb.saw(string(probed)) {
		attacks.through.Add(1)
		t.Error("got through: a claim of another address")
	}
}

// begin gives an interface an address, and returns a function that reports whether the kernel still looks for another host that has it.
func (l *lab) begin(ns *netns.NS, device, cidr string) func() bool {
	l.t.Helper()
	p := netip.MustParsePrefix(cidr)
	l.must(ns.Do(func() error {
		for _, n := range []string{"accept_dad", "dad_transmits"} { // which namespaces of tests have off
			if err := errors.Join(sysctl("ipv6/conf/all/accept_dad", "1"), sysctl("ipv6/conf/"+device+"/"+n, "1")); err != nil {
				return err
			}
		}
		i, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(i, &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 128)}})
	}))
	return func() bool {
		return l.flags(ns, device, p.Addr().String())&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == unix.IFA_F_TENTATIVE
	}
}

// taken reports whether the kernel found another host with an address.
func (l *lab) taken(ns *netns.NS, device, address string) bool {
	l.t.Helper()
	return l.flags(ns, device, address)&unix.IFA_F_DADFAILED != 0
}

func (l *lab) flags(ns *netns.NS, device, address string) (flags int) {
	l.t.Helper()
	l.must(ns.Do(func() error {
		i, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		all, err := link.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(i, netlink.FAMILY_V6) })
		for _, a := range all {
			if a.IP.String() == address {
				flags = a.Flags
			}
		}
		return err
	}))
	return flags
}

// A neighbour on the fast path, which leaves the hop limit as it is, is none. A message without an identifier has the key of
// an echo flow whose identifier is 0.
func TestAttackNeighbourOnFastPath(t *testing.T) {
	t.Parallel()
	onOwnHooks(t, func(t *testing.T, change func(*linux.Config)) {
		l := newLabWith(t, change)
		a, c, f := l.pod("a", 11), l.pod("c", 13), addressSets[1]
		l.apply()
		for l.idle() {
		}
		wa, wc, host := l.wire(a, "eth0"), l.wire(c, "eth0"), l.hostMAC("a")
		message := func(kind byte, word string) []byte {
			return packet(wa.mac, host, ipHeader(f.a, f.c, layers.IPProtocolICMPv6), &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, 0)},
				gopacket.Payload(make([]byte, 20)), gopacket.Payload(word))
		}
		if wa.send(message(128, "open")); !wc.await("open") { // its identifier is 0
			t.Fatal("an echo request does not arrive")
		}
		v := &volley{l: l}
		for _, kind := range []byte{135, 136} {
			v.try(wa, wc, fmt.Sprintf("type %d from a to c", kind), func(w string) []byte { return withHops(message(kind, w), 255) })
		}
		v.held(control{wa, wc, func(w string) []byte { return message(128, w) }})
	})
}

// A process that administers the network of its own pod may change the MAC there. On a bridge, the pod does not get the packets
// of another pod, or of the node, by taking its MAC.
func TestAttackMACOfAnother(t *testing.T) {
	t.Parallel()
	l := newLabWith(t, func(c *linux.Config) { c.PolicyOnly, c.StateDir = true, "bridged" })
	a, b, c := l.pod("a", 11), l.pod("b", 12), l.pod("c", 13)
	l.echo(b, 90)
	l.echo(l.outside, 90)
	l.apply()
	for l.idle() {
	}
	wa, wb, wo := l.wire(a, "eth0"), l.wire(b, "eth0"), l.wire(l.outside, "eth0")
	host := l.hostMAC("a")
	take := func(mac net.HardwareAddr) {
		l.must(a.Do(func() error {
			eth0, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return netlink.LinkSetHardwareAddr(eth0, mac)
		}))
		wa.mac = mac
	}
	for what, taken := range map[string]net.HardwareAddr{"of pod b": wb.mac, "of its bridge": host} {
		take(taken)
		err := l.add("a", 11) // as an audit does, which sees that the MAC changed
		if !errors.Is(err, dataplane.ErrInterfaceKind) {
			t.Errorf("an interface with the MAC %s is attached: %v", what, err)
		}
		v := &volley{l: l}
		for _, f := range addressSets {
			v.try(wa, wo, "a datagram from the MAC "+what, func(w string) []byte { return udpFrame(wa, host, f.a, f.out, 1234, 9999, w) })
		}
		for _, f := range addressSets {
			l.allowed(c, "tcp", f.b, 90)
			l.allowed(b, "tcp", f.out, 90)
		}
		v.held()
	}
	take(wb.mac)
	l.must(l.node.Do(func() error {
		veth, err := netlink.LinkByName("veth-b")
		if err != nil {
			return err
		}
		return netlink.LinkDel(veth) // its DEL is still to come
	}))
	l.must(l.add("a", 11))
}
