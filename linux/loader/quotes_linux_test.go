// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// icmpError returns an ICMP error that quotes a frame. An error to the pod comes from a router.
func icmpError(v6 bool, d way, kind uint8, quoted []byte) []byte {
	if v6 {
		h := ip6(d, layers.IPProtocolICMPv6)
		if d == in {
			h.SrcIP = net.ParseIP("fd09::9")
		}
		body := append([]byte{0, 0, 0, 0}, quoted[14:]...)
		return frame(d, h, &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, 0)}, gopacket.Payload(body))
	}
	h := ip4(d, layers.IPProtocolICMPv4)
	if d == in {
		h.SrcIP = net.IP{10, 9, 9, 9}
	}
	return frame(d, h, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(kind, 0)}, gopacket.Payload(quoted[14:]))
}

// errorKinds returns the error types of an IP version.
func errorKinds(v6 bool) []uint8 {
	if v6 {
		return []uint8{1, 2, 3, 4} // unreachable, too big, time exceeded, parameter problem
	}
	return []uint8{3, 11, 12} // unreachable, time exceeded, parameter problem
}

// An ICMP error about a flow of the pod passes in the direction that the flow implies, and only
// there. The policy of that direction for new flows does not matter.
func TestErrorsAboutTrackedFlows(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		packet := func(d way, port uint16) []byte {
			src, dst := port, uint16(80)
			if d == in {
				src, dst = dst, src
			}
			return frame(d, ip(v6, d, layers.IPProtocolUDP), udp(src, dst), payload)
		}
		b := newBench(t)
		for i, kind := range errorKinds(v6) {
			t.Run(fmt.Sprintf("type %d", kind), func(t *testing.T) {
				near, far := 1000+10*uint16(i), 2000+10*uint16(i)
				// About packets that the pod sent.
				b.under(tableOut)
				b.expect(out, packet(out, near), true, bpfobj.CountEgressAllow)
				b.expect(in, icmpError(v6, in, kind, packet(out, near)), true, nothing)
				b.expect(in, icmpError(v6, in, kind, packet(out, near+1)), false, bpfobj.CountIngressDeny)
				// A router near the pod is not on the path of packets that the peer sends to
				// the pod.
				b.expect(in, icmpError(v6, in, kind, packet(in, near)), false, bpfobj.CountIngressDeny)

				// About packets that the pod received.
				b.under(tableIn)
				b.expect(in, packet(in, far), true, bpfobj.CountIngressAllow)
				b.expect(out, icmpError(v6, out, kind, packet(in, far)), true, nothing)
				b.expect(out, icmpError(v6, out, kind, packet(in, far+1)), false, bpfobj.CountEgressDeny)
				b.expect(out, icmpError(v6, out, kind, packet(out, far)), false, bpfobj.CountEgressDeny)
			})
		}
	})
}

// An error about a flow that policy revoked does not pass.
func TestErrorsAboutRevokedFlows(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		b := newBench(t)
		kind := errorKinds(v6)[0]
		sent := frame(out, ip(v6, out, layers.IPProtocolUDP), udp(1000, 80), payload)
		b.under(tableOut)
		b.expect(out, sent, true, bpfobj.CountEgressAllow)
		b.under(0)
		b.expect(out, sent, false, bpfobj.DropRevoked)
		b.expect(in, icmpError(v6, in, kind, sent), false, bpfobj.CountIngressDeny)
	})
}

// An error may quote other protocols than UDP.
func TestErrorsQuoteAllProtocols(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		icmp := layers.IPProtocolICMPv4
		var echo []gopacket.SerializableLayer
		if v6 {
			icmp = layers.IPProtocolICMPv6
			echo = []gopacket.SerializableLayer{&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(128, 0)}, &layers.ICMPv6Echo{Identifier: 9}}
		} else {
			echo = []gopacket.SerializableLayer{&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: 9}}
		}
		b := newBench(t)
		b.under(tableOut)
		for name, sent := range map[string][]byte{
			"TCP":  frame(out, ip(v6, out, layers.IPProtocolTCP), tcp(1000, 80, "S")),
			"SCTP": frame(out, ip(v6, out, layers.IPProtocolSCTP), sctp(1000, 80)),
			"echo": frame(out, append([]gopacket.SerializableLayer{ip(v6, out, icmp)}, echo...)...),
			"GRE":  frame(out, ip(v6, out, layers.IPProtocolGRE), payload),
		} {
			t.Run(name, func(t *testing.T) {
				b.expect(in, icmpError(v6, in, errorKinds(v6)[0], sent), false, bpfobj.CountIngressDeny)
				b.expect(out, sent, true, bpfobj.CountEgressAllow)
				b.expect(in, icmpError(v6, in, errorKinds(v6)[0], sent), true, nothing)
			})
		}
	})
}

// Quotes with IP options are parsed; a later fragment has no ports.
func TestErrorsQuoteOptionsAndFragments(t *testing.T) {
	b := newBench(t)
	b.under(tableOut)
	h := ip4(out, layers.IPProtocolUDP)
	h.Options = []layers.IPv4Option{{OptionType: 7, OptionLength: 11, OptionData: make([]byte, 9)}, {OptionType: 1}}
	sent := frame(out, h, udp(1000, 80), payload)
	b.expect(out, sent, true, bpfobj.CountEgressAllow)
	b.expect(in, icmpError(false, in, 3, sent), true, nothing)
	h.Options, h.FragOffset = nil, 5
	b.expect(in, icmpError(false, in, 3, frame(out, h, udp(1000, 80), payload)), false, bpfobj.CountIngressDeny)
	// Redirect and source quench are not errors about a flow.
	for _, kind := range []uint8{4, 5} {
		b.expect(in, icmpError(false, in, kind, sent), false, bpfobj.CountIngressDeny)
	}
}

// Policy does not decide errors of a pod about flows that it does not know, if connection tracking may translate them: without
// lookups, and in SCTP, of which there are none. Nor does it decide messages that only connection tracking takes for errors.
func TestErrorsThatMayBeTranslated(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		b := newBench(t)
		b.under(tableOpen)
		kind, odd := errorKinds(v6)[0], []uint8{4, 5}
		if v6 {
			odd = []uint8{0, 5, 127}
		}
		received := frame(in, ip(v6, in, layers.IPProtocolUDP), udp(80, 1000), payload)
		b.expect(out, icmpError(v6, out, kind, received), false, bpfobj.DropRevoked)
		b.expect(out, icmpError(v6, out, kind, frame(in, ip(v6, in, layers.IPProtocolSCTP), sctp(80, 1000))), false, bpfobj.DropRevoked)
		b.expect(out, icmpError(v6, out, kind, frame(in, ip(v6, in, layers.IPProtocolGRE), payload)), true, bpfobj.CountEgressAllow)
		for _, k := range odd {
			b.expect(out, icmpError(v6, out, k, received), false, bpfobj.DropNeighbour)
		}
		if v6 { // connection tracking skips the extension headers of a quote
			b.expect(out, icmpError(v6, out, kind, frame(in, ip(v6, in, layers.IPProtocolIPv6Destination), payload)), false, bpfobj.DropRevoked)
		}
	})
}
