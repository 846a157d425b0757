// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"bytes"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/linux"
)

// On a bridge, pods hear each other's neighbour discovery. A pod can claim only its own address, also if its policy
// allows it all ICMP.
func TestAttackNeighbourOnBridge(t *testing.T) {
	t.Parallel()
	l := newLabWith(t, func(c *linux.Config) { c.PolicyOnly, c.StateDir = true, "bridged" })
	a, b := l.pod("a", 11), l.pod("b", 12)
	l.apply()
	for l.idle() {
	}
	wa, wb := l.wire(a, "eth0"), l.wire(b, "eth0")
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
