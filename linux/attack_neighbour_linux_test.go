// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"bytes"
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
