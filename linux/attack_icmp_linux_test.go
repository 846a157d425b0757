// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/link"
)

// Neighbour discovery messages pass between a pod and its host. They do not pass between pods
// or beyond, whatever their hop limit, and not in IPv4.
func TestAttackNeighbourMessages(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		g := newGuarded(t, change)
		v := &volley{l: g.lab}
		for _, f := range addressSets {
			for _, kind := range []byte{0, 1, 58, 130, 131, 132, 133, 134, 135, 136, 137, 143, 200} {
				for _, hops := range []uint8{1, 64, 255} {
					for _, p := range g.paths(f) {
						// A router decrements the hop limit: packets with limit 1 go no
						// further.
						v.try(p.from, p.at, fmt.Sprintf("protocol 58, type %d, hops %d, %s, %s", kind, hops, p.name, p.dst), func(word string) []byte {
							ip := ipHeader(p.src, p.dst, layers.IPProtocolICMPv6)
							switch ip := ip.(type) {
							case *layers.IPv4:
								ip.TTL = hops
							case *layers.IPv6:
								ip.HopLimit = hops
							}
							return packet(p.from.mac, p.mac, ip, gopacket.Payload(append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, word...)))
						})
					}
				}
			}
			v.held(g.controls(f)...)
		}
	})
}

// Messages of ICMP and ICMPv6 do not pass without permission: neither in their own IP version nor in the other, whole or in
// fragments.
func TestAttackOtherICMP(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		g := newGuarded(t, change)
		v := &volley{l: g.lab}
		for _, f := range addressSets {
			for _, protocol := range []layers.IPProtocol{layers.IPProtocolICMPv4, layers.IPProtocolICMPv6} {
				for _, kind := range []byte{0, 3, 8, 11, 128, 129, 135} {
					for _, p := range g.paths(f) {
						what := fmt.Sprintf("protocol %d, type %d, %s, %s", protocol, kind, p.name, p.dst)
						v.try(p.from, p.at, what+", whole", func(word string) []byte {
							return packet(p.from.mac, p.mac, ipHeader(p.src, p.dst, protocol), icmpMessage(protocol, kind, word)...)
						})
						v.tryAll(p.from, p.at, what+", first fragment", func(word string) [][]byte {
							return p.fragments(protocol, kind, word)[:1]
						})
						v.tryAll(p.from, p.at, what+", in fragments", func(word string) [][]byte {
							return p.fragments(protocol, kind, word)
						})
					}
				}
			}
			v.held(g.controls(f)...)
		}
	})
}

// icmpMessage returns a message of a version of ICMP, with the checksum of that version.
func icmpMessage(protocol layers.IPProtocol, kind byte, payload string) []gopacket.SerializableLayer {
	if protocol == layers.IPProtocolICMPv6 {
		return []gopacket.SerializableLayer{&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, 0)}, gopacket.Payload("\x00\x01\x00\x01" + payload)}
	}
	return []gopacket.SerializableLayer{&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(kind, 0), Id: 1, Seq: 1}, gopacket.Payload(payload)}
}

// fragments returns an ICMP message in two fragments with a valid checksum. Each of them contains the word.
func (p path) fragments(protocol layers.IPProtocol, kind byte, word string) [][]byte {
	const header = 8 // of ICMP
	padded := word + strings.Repeat("-", (8-len(word)%8)%8)
	whole := packet(p.from.mac, p.mac, ipHeader(p.src, p.dst, protocol), icmpMessage(protocol, kind, padded+padded)...)
	message := whole[len(whole)-header-2*len(padded):]
	id, first := uint32(attacks.tried.Load()), header+len(padded)
	make := func(offset int, more bool, part []byte) []byte {
		ip, ok := ipHeader(p.src, p.dst, protocol).(*layers.IPv4)
		if !ok {
			at := uint16(offset)
			if more {
				at |= 1
			}
			head := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16([]byte{byte(protocol), 0}, at), id)
			return packet(p.from.mac, p.mac, ipHeader(p.src, p.dst, layers.IPProtocolIPv6Fragment), gopacket.Payload(append(head, part...)))
		}
		ip.Id, ip.FragOffset = uint16(id), uint16(offset/8)
		if more {
			ip.Flags = layers.IPv4MoreFragments
		}
		return packet(p.from.mac, p.mac, ip, gopacket.Payload(part))
	}
	return [][]byte{make(0, true, message[:first]), make(first, false, message[first:])}
}

// quotation returns an ICMP error that quotes the start of a packet of a protocol between two
// ports. The word follows a whole TCP header, because NAT changes the checksum in it.
func quotation(from *wire, to net.HardwareAddr, src, dst string, kind byte, protocol layers.IPProtocol, quotedSrc, quotedDst string, sport, dport uint16, word string) []byte {
	ports := []byte{byte(sport >> 8), byte(sport), byte(dport >> 8), byte(dport), 0, 0, 0, 1, 0, 0, 0, 0, 5 << 4, 0, 0, 0, 0, 0, 0, 0}
	quoted := serialize(ipHeader(quotedSrc, quotedDst, protocol), gopacket.Payload(append(ports, word...)))
	if is6(src) {
		icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, 0)}
		return packet(from.mac, to, ipHeader(src, dst, layers.IPProtocolICMPv6), icmp, gopacket.Payload(append([]byte{0, 0, 5, 0}, quoted...)))
	}
	icmp := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(kind, 1)}
	return packet(from.mac, to, ipHeader(src, dst, layers.IPProtocolICMPv4), icmp, gopacket.Payload(quoted))
}

// errorKinds returns the error types of an IP version.
func errorKinds(v6 bool) []byte {
	if v6 {
		return []byte{1, 2, 3, 4}
	}
	return []byte{3, 11, 12}
}

// An ICMP error about a flow may only go back along that flow, and only while policy allows the
// flow.
func TestAttackErrors(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		g := newGuarded(t, change)
		b := g.pod("b", 12)
		wb := g.wire(b, "eth0")
		hostB := g.hostMAC("b")
		for _, n := range []string{"b", "c"} {
			g.echo(g.pods[n], 80)
		}
		g.echo(g.outside, 80)
		open := []model.Rule{accept(pods("b"), tcp(80)), accept(block("0.0.0.0/0"), udp(controlPort)), accept(block("::/0"), udp(controlPort))}
		toB := isolate("a", model.Egress, open...)
		g.guard(toB)
		v := &volley{l: g.lab}
		for _, f := range addressSets {
			conn := g.dial("a", f.b, 80)
			defer conn.Close()
			outside := g.dialFrom(g.outside, f.b, 80)
			defer outside.Close()
			own, theirs := localPort(conn), localPort(outside)
			for _, kind := range errorKinds(f.v6) {
				for _, k := range []struct {
					what             string
					from, at         *wire
					mac              net.HardwareAddr
					src, dst, qs, qd string
					sport, dport     uint16
				}{
					{"a quotes its flow to c", g.wa, g.wc, g.host, f.a, f.c, f.b, f.a, 80, own},
					{"a quotes its flow to outside", g.wa, g.wo, g.host, f.a, f.out, f.b, f.a, 80, own},
					{"a quotes the other direction of its flow to c", g.wa, g.wc, g.host, f.a, f.c, f.a, f.b, own, 80},
					{"a quotes the other direction of its flow to b", g.wa, wb, g.host, f.a, f.b, f.a, f.b, own, 80},
					{"a quotes the flow of b and outside to outside", g.wa, g.wo, g.host, f.a, f.out, f.out, f.b, theirs, 80},
					{"a quotes the flow of b and outside to b", g.wa, wb, g.host, f.a, f.b, f.b, f.out, 80, theirs},
					{"outside quotes its flow with b to c", g.wo, g.wc, g.up, f.out, f.c, f.b, f.out, 80, theirs},
					{"outside quotes the other direction to c", g.wo, g.wc, g.up, f.out, f.c, f.out, f.b, theirs, 80},
					{"outside quotes the flow of a and b to c", g.wo, g.wc, g.up, f.out, f.c, f.a, f.b, own, 80},
					{"outside quotes a flow that is none to c", g.wo, g.wc, g.up, f.out, f.c, f.c, f.out, 80, 4711},
					{"a quotes a flow that is none to c", g.wa, g.wc, g.host, f.a, f.c, f.c, f.a, 80, 4711},
				} {
					v.try(k.from, k.at, fmt.Sprintf("type %d: %s (%s)", kind, k.what, k.dst), func(word string) []byte {
						return quotation(k.from, k.mac, k.src, k.dst, kind, layers.IPProtocolTCP, k.qs, k.qd, k.sport, k.dport, word)
					})
				}
			}
			v.held(append(g.controls(f), control{g.wa, wb, func(w string) []byte {
				// A pod may quote packets that it received, to their sender.
				return quotation(g.wa, g.host, f.a, f.b, errorKinds(f.v6)[0], layers.IPProtocolTCP, f.b, f.a, 80, own, w)
			}})...)
			// A stricter policy: flows that it denies no longer carry errors.
			g.guard(isolate("b", model.Ingress), isolate("b", model.Egress, accept(block("0.0.0.0/0"), udp(controlPort)), accept(block("::/0"), udp(controlPort))))
			for _, kind := range errorKinds(f.v6) {
				v.try(g.wa, wb, fmt.Sprintf("type %d: a quotes a flow that is no longer allowed to b", kind), func(word string) []byte {
					return quotation(g.wa, g.host, f.a, f.b, kind, layers.IPProtocolTCP, f.b, f.a, 80, own, word)
				})
				v.try(wb, g.wo, fmt.Sprintf("type %d: b quotes a flow that is no longer allowed to outside", kind), func(word string) []byte {
					return quotation(wb, hostB, f.b, f.out, kind, layers.IPProtocolTCP, f.out, f.b, theirs, 80, word)
				})
				v.try(g.wo, wb, fmt.Sprintf("type %d: outside quotes a flow that is no longer allowed to b", kind), func(word string) []byte {
					return quotation(g.wo, g.up, f.out, f.b, kind, layers.IPProtocolTCP, f.b, f.out, 80, theirs, word)
				})
			}
			v.held(g.controls(f)...)
			g.guard(toB)
		}
	})
}

// Errors about an allowed flow are rate-limited, so that they are not a channel of their own: those that a pod sends, and
// those that a pod receives from elsewhere.
func TestAttackErrorFlood(t *testing.T) {
	onOwnHooks(t, func(t *testing.T, change func(*linux.Config)) {
		for _, f := range addressSets {
			// Each IP version has pods of its own, because both use up the same budget of a pod.
			t.Run(f.a, func(t *testing.T) { errorFlood(t, change, f) })
		}
	})
}

// errorFlood floods pod b with errors of one IP version, about its flows with pod a and with outside.
func errorFlood(t *testing.T, change func(*linux.Config), f addressSet) {
	g := newGuarded(t, change)
	g.pod("b", 12)
	g.echo(g.pods["b"], 80)
	g.guard(isolate("a", model.Egress, accept(pods("b"), tcp(80)), accept(block("0.0.0.0/0"), udp(controlPort)), accept(block("::/0"), udp(controlPort))),
		isolate("b", model.Ingress, accept(pods("a")), accept(block(outsideAddr4+"/32"), tcp(80)), accept(block(outsideAddr6+"/128"), tcp(80))))
	wb := g.wire(g.pods["b"], "eth0")
	conn, outside := g.dial("a", f.b, 80), g.dialFrom(g.outside, f.b, 80)
	defer conn.Close()
	defer outside.Close()
	wb.floodedBy(g.wa, func(word string) []byte {
		return quotation(g.wa, g.host, f.a, f.b, errorKinds(f.v6)[0], layers.IPProtocolTCP, f.b, f.a, 80, localPort(conn), word)
	})
	wb.floodedBy(g.wo, func(word string) []byte {
		return quotation(g.wo, g.up, f.out, f.b, errorKinds(f.v6)[0], layers.IPProtocolTCP, f.b, f.out, 80, localPort(outside), word)
	})
}

// floodedBy sends many ICMP errors, of which some must arrive at w, but no more than the budget of a pod that was idle.
func (w *wire) floodedBy(from *wire, frame func(word string) []byte) {
	w.t.Helper()
	const sent, burst, rate = 2000, 200, 100 // rate is per second
	word := fmt.Sprintf("flood-%d-", attacks.tried.Add(1))
	flood, began := frame(word), time.Now()
	for range sent {
		from.send(flood)
	}
	if !w.await(word) {
		w.t.Fatal("not one error arrives")
	}
	w.receive()
	took := time.Since(began)
	n := 0
	for _, got := range w.got {
		if bytes.Contains(got, []byte(word)) {
			n++
		}
	}
	if limit := burst + int(took.Seconds()*rate) + 1; n > limit {
		attacks.through.Add(1)
		w.t.Errorf("%d of %d errors arrive, want %d at most", n, sent, limit)
	}
	w.got = nil
}

// A pod can create no entries in the neighbour tables of the host, except for its own
// addresses.
func TestAttackNeighbourTable(t *testing.T) {
	t.Parallel()
	onOwnHooks(t, func(t *testing.T, change func(*linux.Config)) {
		g := newGuarded(t, change)
		name := link.HostName(model.MakeEndpointID("a", "eth0"))
		before := g.neighbours(name)
		for i := range 500 {
			arp := &layers.ARP{AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: layers.ARPRequest,
				SourceHwAddress: g.wa.mac, SourceProtAddress: []byte{172, 20, byte(i >> 8), byte(i)}, DstHwAddress: make([]byte, 6), DstProtAddress: net.ParseIP(nodeAddr4).To4()}
			broadcast := net.HardwareAddr{255, 255, 255, 255, 255, 255}
			g.wa.send(serialize(&layers.Ethernet{SrcMAC: g.wa.mac, DstMAC: broadcast, EthernetType: layers.EthernetTypeARP}, arp))
			for _, kind := range []byte{133, 135, 136} {
				target := net.ParseIP(nodeAddr6)
				body := append(append([]byte{0, 0, 0, 0}, target...), append([]byte{1, 1}, g.wa.mac...)...)
				ip := &layers.IPv6{Version: 6, HopLimit: 255, NextHeader: layers.IPProtocolICMPv6, SrcIP: net.ParseIP(fmt.Sprintf("fe80::dead:%x", i)), DstIP: target}
				g.wa.send(packet(g.wa.mac, g.host, ip, &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, 0)}, gopacket.Payload(body)))
			}
		}
		f := addressSets[0]
		for i, c := range g.controls(f) { // controls arrive after all earlier packets
			c.from.send(c.frame(fmt.Sprintf("end-%d-", i)))
			if !c.at.await(fmt.Sprintf("end-%d-", i)) {
				t.Fatal("a control did not arrive")
			}
		}
		if after := g.neighbours(name); after > before+2 {
			t.Errorf("the host had %d neighbours on the pod's interface, and has %d after frames with made-up senders", before, after)
		}
		if n := g.drops("neighbour") + g.drops("spoofed"); n < 2000 {
			t.Errorf("%d frames are counted as dropped, want 2000", n)
		}
	})
}
