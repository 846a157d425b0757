// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/linux"
)

// The node answers no packet with a forged source: its answers, and its ICMP errors, would reach any pod.
func TestAttackReflection(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		g := newGuarded(t, change)
		g.must(g.node.Do(func() error {
			return errors.Join(sysctl("ipv4/conf/all/rp_filter", "0"), sysctl("ipv4/conf/eth0/rp_filter", "0"), sysctl("ipv4/icmp_ratelimit", "0"), sysctl("ipv6/icmp/ratelimit", "0"))
		}))
		g.idleUntilQuiet()
		v := &volley{l: g.lab}
		for i, f := range addressSets {
			nowhere := []string{"203.0.113.7", "2001:db8::7"}[i]
			for name, make := range protocols(f.v6) {
				for _, k := range []struct {
					what, dst string
					hops      uint8
				}{
					{"to the node", f.node, 64},
					{"to outside, with its last hop", f.out, 1},
					{"to an address without a route", nowhere, 64},
				} {
					v.try(g.wo, g.wc, fmt.Sprintf("%s from the uplink as c %s (%s)", name, k.what, k.dst), func(word string) []byte {
						ip := ipHeader(f.c, k.dst, numberOf(name, f.v6))
						switch ip := ip.(type) {
						case *layers.IPv4:
							ip.TTL = k.hops
						case *layers.IPv6:
							ip.HopLimit = k.hops
						}
						return packet(g.wo.mac, g.up, ip, make(word)...)
					})
				}
			}
			v.held(g.controls(f)...)
		}
	})
}

// The node sends ICMP errors about some packets before the programs on PRE_ROUTING see them: about options that it does not know,
// and about fragments that wait for the rest. A pod that policy isolates gets such an error about its own packets only.
func TestAttackReflectedErrors(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		g := newGuarded(t, change)
		g.load(track) // connection tracking reassembles
		g.must(g.node.Do(func() error {
			return errors.Join(sysctl("ipv4/conf/all/rp_filter", "0"), sysctl("ipv4/conf/eth0/rp_filter", "0"), sysctl("ipv4/icmp_ratelimit", "0"),
				sysctl("ipv6/icmp/ratelimit", "0"), sysctl("ipv4/ipfrag_time", "1"), sysctl("netfilter/nf_conntrack_frag6_timeout", "1"), sysctl("ipv6/ip6frag_time", "1"))
		}))
		g.idleUntilQuiet()
		v := &volley{l: g.lab}
		for _, f := range addressSets {
			for _, dst := range []string{f.node, f.out, f.a} {
				v.try(g.wo, g.wc, "a first fragment from the uplink as c to "+dst, func(w string) []byte { return firstFragment(g.wo.mac, g.up, f.c, dst, w) })
				for what, option := range map[string]string{"an unknown option": "\xbe\x04\x00\x00\x00\x00", "a wrong jumbo option": "\xc2\x04\x00\x00\x00\x00"} {
					if !f.v6 {
						break
					}
					v.try(g.wo, g.wc, fmt.Sprintf("a packet with %s from the uplink as c to %s", what, dst), func(w string) []byte {
						header := string([]byte{byte(layers.IPProtocolNoNextHeader), 0}) + option
						return packet(g.wo.mac, g.up, ipHeader(f.c, dst, layers.IPProtocolIPv6HopByHop), gopacket.Payload(header+w))
					})
				}
			}
		}
		for _, f := range addressSets { // the last fragments, about which outside itself gets errors
			word := fmt.Sprintf("fragment, IPv6 %t", f.v6)
			if g.wo.send(firstFragment(g.wo.mac, g.up, f.out, f.node, word)); !g.wo.await(word) {
				t.Errorf("%s: the node sends no error", word)
			}
		}
		v.held(append(g.controls(addressSets[0]), g.controls(addressSets[1])...)...)
		for _, f := range addressSets {
			word := fmt.Sprintf("last hop of c, IPv6 %t", f.v6)
			wire := udpFrame(g.wc, g.hostMAC("c"), f.c, f.out, 9, controlPort, word)
			if g.wc.send(withHops(wire, 1)); !g.wc.await(word) {
				t.Errorf("%s: the error of the node does not arrive", word)
			}
		}
	})
}

// withHops returns a frame with another hop limit.
func withHops(frame []byte, hops uint8) []byte {
	if frame[14]>>4 == 6 {
		frame[14+7] = hops
		return frame
	}
	change := uint32(frame[14+8]-hops) << 8 // by which the sum of the header becomes less
	sum := uint32(binary.BigEndian.Uint16(frame[14+10:])) + change
	binary.BigEndian.PutUint16(frame[14+10:], uint16(sum+sum>>16))
	frame[14+8] = hops
	return frame
}

// firstFragment returns the first fragment of a datagram.
func firstFragment(from, to net.HardwareAddr, src, dst, word string) []byte {
	data := append([]byte{0, 9, 0x27, 0x0f, 1, 0, 0, 0}, word+strings.Repeat("-", 64-len(word))...)
	if is6(src) {
		header := append([]byte{byte(layers.IPProtocolUDP), 0, 0, 1, 0, 0, 0, byte(attacks.tried.Load())}, data...)
		return packet(from, to, ipHeader(src, dst, layers.IPProtocolIPv6Fragment), gopacket.Payload(header))
	}
	ip := ipHeader(src, dst, layers.IPProtocolUDP).(*layers.IPv4)
	ip.Id, ip.Flags = uint16(attacks.tried.Load()), layers.IPv4MoreFragments
	return packet(from, to, ip, gopacket.Payload(data))
}
