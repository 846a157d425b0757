// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/test/netns"
)

// offloading makes a wire send frames whose checksum the kernel computes later (see incomplete).
func (w *wire) offloading() *wire {
	w.t.Helper()
	if err := unix.SetsockoptInt(w.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		w.t.Fatalf("let the kernel compute checksums: %v", err)
	}
	return w
}

// incomplete returns a frame for an offloading wire: the kernel sums it up from start, and writes the result to start + offset.
func incomplete(frame []byte, start, offset int) []byte {
	header := make([]byte, 10) // struct virtio_net_hdr
	header[0] = 1              // VIRTIO_NET_HDR_F_NEEDS_CSUM
	binary.NativeEndian.PutUint16(header[6:], uint16(start))
	binary.NativeEndian.PutUint16(header[8:], uint16(offset))
	return append(header, frame...)
}

// lengthened returns a datagram to controlPort behind IPv4 options or an extension header of IPv6, and the offset of its UDP header.
func lengthened(w *wire, to net.HardwareAddr, f addressSet, word string) (frame []byte, at int) {
	udp := &layers.UDP{SrcPort: 1234, DstPort: controlPort}
	if f.v6 {
		return packet(w.mac, to, ipHeader(f.a, f.out, layers.IPProtocolIPv6Destination), gopacket.Payload{17, 0, 1, 4, 0, 0, 0, 0}, udp, gopacket.Payload(word)), 62
	}
	ip := ipHeader(f.a, f.out, layers.IPProtocolUDP).(*layers.IPv4)
	ip.Options = []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 0}}
	return packet(w.mac, to, ip, udp, gopacket.Payload(word)), 38
}

// The sender of a packet says where its checksum belongs, and the kernel or the device writes it there when the packet leaves the
// node, after policy. A pod does not change the destination of an allowed packet by it.
func TestAttackChecksum(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		g := newGuarded(t, change)
		g.must(g.node.Do(func() error { return netns.FillChecksums("eth0") }))
		wv := g.wire(g.a, "eth0").offloading()
		for _, f := range addressSets {
			size, least := 34, 20 // the length of the headers before UDP, and where a sum may start
			if f.v6 {
				size, least = 54, 40
			}
			datagram := func(word string) []byte { return udpFrame(g.wa, g.host, f.a, f.out, 1234, controlPort, word) }
			v := &volley{l: g.lab}
			for what, at := range map[string]int{"port": size + 2, "source port": size, "address": size - 2, "source": 28} {
				for _, start := range []int{size, at, least} {
					if least <= start && start <= at {
						v.try(wv, g.wo, fmt.Sprintf("checksum from %d in the %s of a datagram to %s", start, what, f.out), func(word string) []byte {
							return incomplete(datagram(word), start, at-start)
						})
					}
				}
			}
			v.try(wv, g.wo, "checksum in the port behind more headers, to "+f.out, func(word string) []byte {
				frame, at := lengthened(g.wa, g.host, f, word)
				return incomplete(frame, at, 2)
			})
			v.held(append(g.controls(f),
				control{wv, g.wo, func(w string) []byte { return incomplete(datagram(w), size, 6) }},
				control{wv, g.wo, func(w string) []byte {
					frame, at := lengthened(g.wa, g.host, f, w)
					return incomplete(frame, at, 6)
				}})...)
		}
		others := isolate("a", model.Egress, accept(block("0.0.0.0/0"), tcp(controlPort)), accept(block("::/0"), tcp(controlPort)),
			accept(block(outsideAddr4+"/32")), accept(block(outsideAddr6+"/128")))
		others.Origin.Name = "others"
		g.guard(others)
		for _, f := range addressSets {
			g.incompleteOthers(wv, f)
		}
	})
}

// incompleteOthers tries the same with other protocols, which policy allows to outside.
func (g *guarded) incompleteOthers(wv *wire, f addressSet) {
	g.t.Helper()
	v, size := &volley{l: g.lab}, 34
	echo, protocol := gopacket.SerializableLayer(&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: 7}), layers.IPProtocolICMPv4
	if f.v6 {
		size = 54
		echo, protocol = &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(128, 0)}, layers.IPProtocolICMPv6
	}
	segment := func(word string) []byte {
		return packet(g.wa.mac, g.host, ipHeader(f.a, f.out, layers.IPProtocolTCP), &layers.TCP{SrcPort: 1234, DstPort: controlPort, SYN: true}, gopacket.Payload(word))
	}
	for _, field := range []int{2, 4, 12} {
		v.try(wv, g.wo, fmt.Sprintf("checksum in byte %d of TCP to %s", field, f.out), func(word string) []byte { return incomplete(segment(word), size, field) })
	}
	v.try(wv, g.wo, "checksum in the identifier of an echo request to "+f.out, func(word string) []byte {
		return incomplete(packet(g.wa.mac, g.host, ipHeader(f.a, f.out, protocol), echo, gopacket.Payload("1234"+word)), size, 4)
	})
	v.held(control{wv, g.wo, func(w string) []byte { return incomplete(segment(w), size, 16) }})
}

// The same in ARP: on a bridge, the sender's address would become another one behind the check.
func TestAttackChecksumOfARP(t *testing.T) {
	t.Parallel()
	l, wa, wb := onBridge(t)
	l.must(l.node.Do(func() error { return netns.FillChecksums("veth-b") }))
	wv := l.wire(l.pods["a"], "eth0").offloading()
	f := addressSets[0]
	attacks.tried.Add(1)
	wv.send(incomplete(question(wa, wb.mac, f.a, f.b), 28, 0))
	last := question(wa, wb.mac, f.a, f.b)
	if wa.send(last); !wb.await(string(last)) {
		t.Fatal("an ARP request does not arrive")
	}
	sender := append(slices.Clone([]byte(wa.mac)), net.ParseIP(f.a).To4()...)
	for _, frame := range wb.got {
		if len(frame) >= 42 && frame[12] == 8 && frame[13] == 6 && bytes.Equal(frame[22:28], wa.mac) && !bytes.Equal(frame[22:32], sender) {
			attacks.through.Add(1)
			t.Errorf("got through: % x", frame)
		}
	}
}
