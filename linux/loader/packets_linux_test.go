// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

func TestTCP(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		b := newBench(t)
		l4 := func(d way, src, dst uint16, flags string) []byte {
			return frame(d, ip(v6, d, layers.IPProtocolTCP), tcp(src, dst, flags))
		}
		b.expect(out, l4(out, 1000, 81, "S"), false, bpfobj.CountEgressDeny)
		b.expect(in, l4(in, 81, 1000, "SA"), false, bpfobj.CountIngressDeny)
		b.expect(out, l4(out, 1000, 80, "S"), true, bpfobj.CountEgressAllow)
		b.expect(out, l4(out, 1000, 80, "S"), true, nothing) // a retransmission
		b.expect(in, l4(in, 80, 1000, "SA"), true, nothing)
		b.expect(out, l4(out, 1000, 80, "A"), true, nothing)
		// Accepting a flow gives no right to open its reverse.
		b.expect(in, l4(in, 80, 1000, "S"), false, bpfobj.CountIngressDeny)
		b.expect(in, l4(in, 80, 1000, "A"), true, nothing)
		b.expect(out, l4(out, 1000, 80, "FA"), true, nothing)
		b.expect(in, l4(in, 80, 1000, "FA"), true, nothing)
		b.expect(out, l4(out, 1000, 80, "S"), true, nothing) // the same ports open a new connection
	})
}

func TestPolicyChangeReachesTheFlow(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		b := newBench(t)
		packet := func(d way, src, dst uint16) []byte {
			return frame(d, ip(v6, d, layers.IPProtocolUDP), udp(src, dst), payload)
		}
		b.expect(out, packet(out, 1000, 80), true, bpfobj.CountEgressAllow)
		b.expect(in, packet(in, 80, 1000), true, nothing)
		b.under(tableWeb) // no change
		b.expect(in, packet(in, 80, 1000), true, nothing)
		b.under(policymap.DenyAll)
		b.expect(in, packet(in, 80, 1000), false, bpfobj.DropRevoked)
		b.expect(out, packet(out, 1000, 80), false, bpfobj.DropRevoked)
		b.under(tableOpen)
		b.expect(in, packet(in, 80, 1000), true, nothing)
		b.expect(out, packet(out, 1000, 80), true, nothing)

		// Revalidated when the accepting pod sends first, by its own port.
		const webIn = 3 << 2 // ingress by row 2
		if err := b.path.Execute(&policymap.Writes{Tables: []policymap.TableWrite{{Number: webIn}},
			Verdicts: []policymap.VerdictWrite{{VerdictKey: policymap.VerdictKey{Table: webIn, Peer: policymap.PeerKey(model.World, in)}, VerdictRow: policymap.VerdictRow{Row: 2}}}}); err != nil {
			t.Fatal(err)
		}
		b.under(webIn)
		b.expect(in, packet(in, 6000, 80), true, bpfobj.CountIngressAllow)
		b.under(webIn)
		b.expect(out, packet(out, 80, 6000), true, nothing)
		b.expect(in, packet(in, 6000, 80), true, nothing)
		b.under(tableOpen)

		// After policy revokes a flow that the pod accepted, the pod cannot continue it as its
		// opener.
		b.expect(in, packet(in, 5000, 53), true, bpfobj.CountIngressAllow)
		b.expect(out, packet(out, 53, 5000), true, nothing)
		b.under(2<<2 | 0b10) // egress only
		b.expect(out, packet(out, 53, 5000), false, bpfobj.DropRevoked)
		b.expect(in, packet(in, 5000, 53), false, bpfobj.DropRevoked)
		b.expect(out, packet(out, 53, 5001), true, bpfobj.CountEgressAllow)
	})
}

// While a node changes its mode, programs in the host stack of one mode decide packets that programs of pods of the other
// mode have marked. All of them pass, also those with the marks of later rounds.
func TestMarksOfAnotherMode(t *testing.T) {
	for _, foreign := range []bool{false, true} {
		bothFamilies(t, func(t *testing.T, v6 bool) {
			s := loader.DefaultSettings()
			s.Foreign = foreign
			b := newBenchWith(t, s)
			if err := b.path.ChangeMode(); err != nil {
				t.Fatal(err)
			}
			packet := frame(out, ip(v6, out, layers.IPProtocolUDP), udp(1000, 80), payload)
			b.expect(out, packet, true, bpfobj.CountEgressAllow)
			if err := b.path.AdvanceRecords(65536 * 129); err != nil { // the round has the bit that other plugins own
				t.Fatal(err)
			}
			b.expect(out, packet, true, nothing)
			b.expect(out, frame(out, ip(v6, out, layers.IPProtocolUDP), udp(1000, 81), payload), false, bpfobj.CountEgressDeny)
		})
	}
}

// A packet gets the record of an earlier one of its flow, but not one that programs of the other mode stored: their mark may
// have bits that belong to other plugins.
func TestRecordOfTheFlow(t *testing.T) {
	const kind, other = 0x3c00, 0x2800 ^ 0x0c00 // MARK_KIND, and the bits in which those of the modes differ
	for _, foreign := range []bool{false, true} {
		bothFamilies(t, func(t *testing.T, v6 bool) {
			s := loader.DefaultSettings()
			s.Foreign = foreign
			b := newBenchWith(t, s)
			packet := frame(out, ip(v6, out, layers.IPProtocolUDP), udp(1000, 80), payload)
			b.expect(out, packet, true, bpfobj.CountEgressAllow)
			first, err := b.path.MarkOf(packet)
			again, failed := b.path.MarkOf(packet)
			if err := errors.Join(err, failed); err != nil || again != first {
				t.Fatalf("mark %#x, then %#x, %v", first, again, err)
			}
			if err := b.path.ChangeMark(first, first^other); err != nil {
				t.Fatal(err)
			}
			if now, err := b.path.MarkOf(packet); err != nil || now&kind != first&kind || now == first {
				t.Errorf("mark %#x beside a record with %#x, %v; the earlier one was %#x", now, first^other, err, first)
			}
		})
	}
}

func TestSpoofing(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		b := newBench(t)
		b.under(tableOpen)
		forged := func(change func(*layers.IPv4, *layers.IPv6)) []byte {
			v4, six := ip4(out, layers.IPProtocolUDP), ip6(out, layers.IPProtocolUDP)
			change(v4, six)
			if v6 {
				return frame(out, six, udp(1, 2), payload)
			}
			return frame(out, v4, udp(1, 2), payload)
		}
		b.expect(out, forged(func(v4 *layers.IPv4, six *layers.IPv6) {
			v4.SrcIP, six.SrcIP = net.IP{10, 1, 0, 99}, net.ParseIP("fd01::99")
		}), false, bpfobj.DropSpoofed)
		f := forged(func(*layers.IPv4, *layers.IPv6) {})
		b.expect(out, f, true, bpfobj.CountEgressAllow)
		f[6] ^= 4 // source MAC
		b.expect(out, f, false, bpfobj.DropSpoofed)
		b.pod.Ip4, b.pod.Ip6 = [4]byte{}, [16]byte{}
		f[6] ^= 4
		b.expect(out, f, false, bpfobj.DropSpoofed) // the pod has no address of this IP version
	})
}

func TestFragments(t *testing.T) {
	t.Run("IPv4", func(t *testing.T) {
		b := newBench(t)
		fragment := func(id, offset uint16, more bool, l4 ...gopacket.SerializableLayer) []byte {
			h := ip4(out, layers.IPProtocolUDP)
			h.Id, h.FragOffset = id, offset
			if more {
				h.Flags = layers.IPv4MoreFragments
			}
			return frame(out, append([]gopacket.SerializableLayer{h}, l4...)...)
		}
		b.expect(out, fragment(1, 5, false, payload), false, bpfobj.DropFragment)
		b.expect(out, fragment(1, 0, true, udp(1000, 80), payload), true, bpfobj.CountEgressAllow)
		b.expect(out, fragment(1, 5, true, payload), true, nothing)
		b.expect(out, fragment(1, 10, false, payload), true, nothing)
		b.expect(out, fragment(2, 5, false, payload), false, bpfobj.DropFragment)
		// A fragment of another datagram whose ports use the same entry.
		b.expect(out, fragment(1+8, 5, false, payload), false, bpfobj.DropFragment)
		for _, change := range []func(*layers.IPv4){
			func(h *layers.IPv4) { h.Protocol = layers.IPProtocolTCP },
			func(h *layers.IPv4) { h.DstIP = net.IP{10, 1, 0, 77} },
			func(h *layers.IPv4) { h.SrcIP = net.IP{10, 1, 0, 77} },
		} {
			h := ip4(out, layers.IPProtocolUDP)
			h.Id, h.FragOffset = 1, 5
			change(h)
			b.expect(out, frame(out, h, payload), false, bpfobj.DropFragment)
		}
		b.expect(out, fragment(1, 12, false, payload), true, nothing)
		// Denied by its ports, and so are its later fragments.
		b.expect(out, fragment(3, 0, true, udp(1000, 81), payload), false, bpfobj.CountEgressDeny)
		b.expect(out, fragment(3, 5, false, payload), false, bpfobj.CountEgressDeny)
		// A tiny first fragment cuts off the ports.
		b.expect(out, fragment(4, 0, true, gopacket.Payload{1, 2}), false, bpfobj.DropMalformed)
	})
	t.Run("IPv6", func(t *testing.T) {
		b := newBench(t)
		fragment := func(id uint32, offset uint16, more bool, l4 ...gopacket.SerializableLayer) []byte {
			// Serialised by hand: next header, reserved, offset and flag, ID.
			h := make([]byte, 8)
			h[0] = byte(layers.IPProtocolUDP)
			binary.BigEndian.PutUint16(h[2:], offset<<3)
			if more {
				h[3] |= 1
			}
			binary.BigEndian.PutUint32(h[4:], id)
			ls := []gopacket.SerializableLayer{ip6(out, layers.IPProtocolIPv6Fragment), gopacket.Payload(h)}
			return frame(out, append(ls, l4...)...)
		}
		b.expect(out, fragment(1, 5, false, payload), false, bpfobj.DropFragment)
		b.expect(out, fragment(1, 0, true, udp(1000, 80), payload), true, bpfobj.CountEgressAllow)
		b.expect(out, fragment(1, 5, false, payload), true, nothing)
		b.expect(out, fragment(9, 0, false, udp(1001, 80), payload), true, bpfobj.CountEgressAllow) // atomic fragment
	})
}

func TestHeadersInBetween(t *testing.T) {
	b := newBench(t)
	h := ip4(out, layers.IPProtocolTCP)
	h.Options = []layers.IPv4Option{{OptionType: 7, OptionLength: 11, OptionData: make([]byte, 9)}, {OptionType: 1}}
	b.expect(out, frame(out, h, tcp(1000, 80, "S")), true, bpfobj.CountEgressAllow)

	six := func(next layers.IPProtocol, headers ...[]byte) []byte {
		ls := []gopacket.SerializableLayer{ip6(out, next)}
		for _, h := range headers {
			ls = append(ls, gopacket.Payload(h))
		}
		return frame(out, append(ls, tcp(1000, 80, "S"))...)
	}
	const hopByHop, routing, destination, tcpNext = 0, 43, 60, 6
	b.expect(out, six(hopByHop, []byte{tcpNext, 0, 0, 0, 0, 0, 0, 0}), true, bpfobj.CountEgressAllow)
	b.expect(out, six(hopByHop, []byte{destination, 0, 0, 0, 0, 0, 0, 0}, []byte{tcpNext, 1, 15: 0}), true, nothing)
	b.expect(out, six(hopByHop, []byte{destination, 200, 0, 0, 0, 0, 0, 0}), false, bpfobj.DropMalformed)
	var chain [][]byte
	for range 9 {
		chain = append(chain, []byte{destination, 0, 0, 0, 0, 0, 0, 0})
	}
	b.expect(out, six(destination, chain...), false, bpfobj.DropMalformed)
}

func TestICMPErrors(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		b := newBench(t)
		// An error from a router about a packet that the pod sent.
		quoted := func(src, dst uint16) []byte {
			inner := frame(out, ip(v6, out, layers.IPProtocolUDP), udp(src, dst), payload)[14:]
			router4, router6 := ip4(in, layers.IPProtocolICMPv4), ip6(in, layers.IPProtocolICMPv6)
			router4.SrcIP, router6.SrcIP = net.IP{10, 9, 9, 9}, net.ParseIP("fd09::9")
			if v6 {
				icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(2, 0)}
				return frame(in, router6, icmp, gopacket.Payload(append([]byte{0, 0, 5, 0}, inner...)))
			}
			icmp := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 4)}
			return frame(in, router4, icmp, gopacket.Payload(inner))
		}
		b.expect(in, quoted(1000, 80), false, bpfobj.CountIngressDeny)
		b.expect(out, frame(out, ip(v6, out, layers.IPProtocolUDP), udp(1000, 80), payload), true, bpfobj.CountEgressAllow)
		b.expect(in, quoted(1000, 80), true, nothing)
		b.expect(in, quoted(1001, 80), false, bpfobj.CountIngressDeny)
		short := quoted(1000, 80)
		b.expect(in, short[:len(short)-len(payload)-8], false, bpfobj.CountIngressDeny) // quotes no ports
	})
}

func TestEcho(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		b := newBench(t)
		echo := func(d way, reply bool, id uint16) []byte {
			if v6 {
				typ := uint8(128)
				if reply {
					typ = 129
				}
				return frame(d, ip6(d, layers.IPProtocolICMPv6), &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(typ, 0)},
					&layers.ICMPv6Echo{Identifier: id, SeqNumber: 1})
			}
			typ := uint8(8)
			if reply {
				typ = 0
			}
			return frame(d, ip4(d, layers.IPProtocolICMPv4), &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(typ, 0), Id: id, Seq: 1})
		}
		b.expect(out, echo(out, false, 5), false, bpfobj.CountEgressDeny)
		b.under(2<<2 | 0b10) // egress only
		b.expect(out, echo(out, false, 5), true, bpfobj.CountEgressAllow)
		b.expect(in, echo(in, true, 5), true, nothing)
		b.expect(in, echo(in, false, 5), false, bpfobj.CountIngressDeny)
		b.expect(in, echo(in, true, 6), false, bpfobj.CountIngressDeny)
	})
}

// Messages of neighbour discovery and multicast listener discovery pass between a pod and its
// host, if no router can have forwarded them and they concern only that pod. Otherwise they are
// ICMP.
func TestNeighbourDiscovery(t *testing.T) {
	b := newBench(t)
	const link, nodes, solicited, own = "fe80::1", "ff02::1", "ff02::1:ff00:c", "fe80::ff:fe00:1"
	nd := func(d way, typ, hops uint8, src, dst string) []byte {
		h := ip6(d, layers.IPProtocolICMPv6)
		h.HopLimit, h.SrcIP, h.DstIP = hops, net.ParseIP(src), net.ParseIP(dst)
		return frame(d, h, &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(typ, 0)}, gopacket.Payload(make([]byte, 20)))
	}
	pod, peer := pod6.String(), peer6.String()
	for _, src := range []string{pod, own, "::"} {
		b.expect(out, nd(out, 135, 255, src, solicited), true, nothing)
		b.expect(out, nd(out, 136, 255, src, link), true, nothing)
		b.expect(out, nd(out, 133, 255, src, "ff02::2"), true, nothing)
	}
	b.expect(out, nd(out, 143, 1, own, "ff02::16"), true, nothing)
	b.expect(out, nd(out, 143, 1, "::", "ff02::16"), true, nothing)
	// Not from neighbours, or not to neighbours.
	b.expect(out, nd(out, 135, 254, pod, solicited), false, bpfobj.DropNeighbour)
	b.expect(out, nd(out, 135, 255, pod, peer), false, bpfobj.DropNeighbour) // the fast path would not change the hop limit
	b.expect(out, nd(out, 143, 2, pod, "ff02::16"), false, bpfobj.DropNeighbour)
	b.expect(out, nd(out, 143, 1, pod, peer), false, bpfobj.CountEgressDeny)
	// For another address, or as a router.
	b.expect(out, nd(out, 135, 255, "fd01::99", solicited), false, bpfobj.DropNeighbour)
	b.expect(out, nd(out, 136, 255, "fe80::1234", link), false, bpfobj.DropNeighbour)
	b.expect(out, nd(out, 134, 255, own, nodes), false, bpfobj.DropNeighbour)
	b.expect(out, nd(out, 137, 255, own, nodes), false, bpfobj.DropNeighbour)
	b.expect(out, nd(out, 134, 64, pod, peer), false, bpfobj.CountEgressDeny)
	// Only the host may send these to the pod.
	for _, typ := range []uint8{133, 134, 135, 136, 137} {
		b.expectFrom(in, loader.SandboxHost, nd(in, typ, 255, link, nodes), true, nothing)
		b.expect(in, nd(in, typ, 255, link, nodes), false, bpfobj.CountIngressDeny)
		b.expect(in, nd(in, typ, 255, peer, pod), false, bpfobj.CountIngressDeny)
	}
	// ICMPv6 in IPv4 is not ICMP.
	b.expect(out, frame(out, ip4(out, layers.IPProtocolICMPv6), gopacket.Payload{135, 0, 0, 0, 0, 0, 0, 0}), false, bpfobj.CountEgressDeny)
	b.expect(in, frame(in, ip4(in, layers.IPProtocolICMPv6), gopacket.Payload{135, 0, 0, 0, 0, 0, 0, 0}), false, bpfobj.CountIngressDeny)
}

// Whatever policy says, a pod sends nothing but neighbour discovery to addresses that only its host could receive.
func TestAddressesOfTheLink(t *testing.T) {
	b := newBench(t)
	b.under(tableOpen)
	for dst, passes := range map[string]bool{
		"fe80::1": false, "febf::1": false, "fec0::1": true, "ff02::1": false, "ff05::1": true, "ff0e::1": true, "2001:db8::1": true,
		"224.0.0.0": false, "224.0.0.255": false, "224.0.1.0": true, "239.255.255.255": true, "255.255.255.255": false, "255.255.255.254": true, "169.254.1.1": true,
	} {
		d := netip.MustParseAddr(dst)
		var f []byte
		if d.Is6() {
			h := ip6(out, layers.IPProtocolUDP)
			h.DstIP = d.AsSlice()
			f = frame(out, h, udp(1000, 2000))
		} else {
			h := ip4(out, layers.IPProtocolUDP)
			h.DstIP = d.AsSlice()
			f = frame(out, h, udp(1000, 2000))
		}
		if passes {
			b.expect(out, f, true, bpfobj.CountEgressAllow)
		} else {
			b.expect(out, f, false, bpfobj.DropNeighbour)
		}
	}
}

// A pod may send ARP only for itself.
func TestARP(t *testing.T) {
	b := newBench(t)
	arp := func(change func(*layers.ARP)) []byte {
		a := &layers.ARP{AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: layers.ARPRequest,
			SourceHwAddress: podMAC, SourceProtAddress: pod4.AsSlice(), DstHwAddress: make([]byte, 6), DstProtAddress: []byte{169, 254, 1, 1}}
		change(a)
		f := frame(out, ip4(out, layers.IPProtocolTCP))[:14]
		f[12], f[13] = 0x08, 0x06
		buf := gopacket.NewSerializeBuffer()
		if err := a.SerializeTo(buf, gopacket.SerializeOptions{}); err != nil {
			t.Fatal(err)
		}
		return append(f, buf.Bytes()...)
	}
	b.expect(out, arp(func(*layers.ARP) {}), true, nothing)
	b.expect(out, arp(func(a *layers.ARP) { a.Operation = layers.ARPReply }), true, nothing)
	b.expect(out, arp(func(a *layers.ARP) { a.SourceProtAddress = make([]byte, 4) }), true, nothing) // an ARP probe
	for _, change := range []func(*layers.ARP){
		func(a *layers.ARP) { a.SourceProtAddress = []byte{172, 20, 0, 1} },
		func(a *layers.ARP) { a.SourceHwAddress = hostMAC },
		func(a *layers.ARP) { a.Operation = 3 },
		func(a *layers.ARP) { a.Protocol = layers.EthernetTypeIPv6 },
	} {
		b.expect(out, arp(change), false, bpfobj.DropNeighbour)
	}
	short := arp(func(*layers.ARP) {})
	b.expect(out, short[:len(short)-1], false, bpfobj.DropNeighbour)
	b.expectFrom(in, loader.SandboxHost, arp(func(a *layers.ARP) { a.SourceHwAddress = hostMAC }), true, nothing)
}

func TestMalformed(t *testing.T) {
	b := newBench(t)
	b.under(tableOpen)
	good := frame(out, ip4(out, layers.IPProtocolTCP), tcp(1000, 80, "S"))
	change := func(f func([]byte)) []byte {
		c := append([]byte(nil), good...)
		f(c)
		return c
	}
	const l3 = 14
	b.expect(out, good[:l3+24], false, bpfobj.DropMalformed)
	b.expect(out, change(func(p []byte) { p[l3] = 0x44 }), false, bpfobj.DropMalformed)             // header length
	b.expect(out, change(func(p []byte) { p[l3] = 0x65 }), false, bpfobj.DropMalformed)             // version
	b.expect(out, change(func(p []byte) { p[l3+2], p[l3+3] = 0, 30 }), false, bpfobj.DropMalformed) // ends within the TCP header
	b.expect(out, change(func(p []byte) { p[l3+20+12] = 4 << 4 }), false, bpfobj.DropMalformed)     // TCP header length
	b.expect(out, change(func(p []byte) { p[12], p[13] = 0x88, 0xb5 }), false, bpfobj.DropNotIP)
}

// A flow is new again after its idle timeout.
func TestFlowIsForgotten(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	b := newBench(t)
	b.path.Close()
	path, err := loader.OpenSandboxWith(loader.Settings{Timeouts: loader.Timeouts{Opening: 100 * time.Millisecond, TCP: time.Hour, Other: time.Hour, Closing: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	b.path = path
	t.Cleanup(func() { path.Close() })
	b.under(2<<2 | 0b10)
	b.expect(out, frame(out, ip4(out, layers.IPProtocolUDP), udp(1, 2), payload), true, bpfobj.CountEgressAllow)
	b.expect(in, frame(in, ip4(in, layers.IPProtocolUDP), udp(2, 1), payload), true, nothing)
	b.expect(out, frame(out, ip4(out, layers.IPProtocolUDP), udp(3, 4), payload), true, bpfobj.CountEgressAllow)
	time.Sleep(200 * time.Millisecond)
	b.expect(in, frame(in, ip4(in, layers.IPProtocolUDP), udp(4, 3), payload), false, bpfobj.CountIngressDeny)
	b.expect(in, frame(in, ip4(in, layers.IPProtocolUDP), udp(2, 1), payload), true, nothing) // answered, so the timeout is longer
}

// A flow between two pods of the node notes their slots, and leaves the fast path when one of them is gone. The address of that pod
// is then not believed at a device whose index is the number of its slot.
func TestSlotIsNoDevice(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		b := newBench(t)
		b.under(tableOpen)
		gone := bpfobj.PodEndpoint{Ip4: peer4.As4(), Ip6: peer6.As16(), Mac: [6]byte{2, 9}, Slot: loader.SandboxUplink}
		slot := policymap.SlotWrite{Index: gone.Slot, Slot: bpfobj.PodSlot{Table: tableOpen, Epoch: 1}}
		ranges := map[netip.Prefix]loader.Owner{netip.PrefixFrom(peer4, 24).Masked(): loader.PodsOwn, netip.PrefixFrom(peer6, 64).Masked(): loader.PodsOwn}
		classes := &policymap.Writes{Peers: []policymap.PeerWrite{{Addr: peer4, Class: 7, Pod: true}, {Addr: peer6, Class: 7, Pod: true}}}
		if err := errors.Join(b.path.PutEndpoint(loader.SandboxInterface, b.pod), b.path.PutEndpoint(7, gone), b.path.WriteSlot(slot),
			b.path.SetOwners(ranges), b.path.Execute(classes)); err != nil {
			t.Fatal(err)
		}
		datagram := frame(out, ip(v6, out, layers.IPProtocolUDP), udp(1000, 80), payload)
		for _, direct := range []bool{true, false} {
			o, err := replayer(t, b).Run(loader.AtFromPod, loader.Replayed{Ifindex: loader.SandboxInterface, Frame: datagram})
			if err != nil || !o.Passed || o.Redirected != direct {
				t.Fatalf("between pods: %+v, %v; on the fast path: want %t", o, err, direct)
			}
			if err := errors.Join(b.path.DropEndpoint(7), b.path.WriteSlot(policymap.SlotWrite{Index: gone.Slot})); err != nil {
				t.Fatal(err)
			}
		}
		b.expect(in, frame(in, ip(v6, in, layers.IPProtocolUDP), udp(80, 1000), payload), false, bpfobj.DropSpoofed)
	})
}
