// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"fmt"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
)

// external stands for Services that have the addresses of pods as external addresses.
const external = `
table %[1]s external-test {
	chain pre { type nat hook prerouting priority -100; %[1]s daddr { %[2]s, %[3]s } meta l4proto { tcp, udp } th dport { 90, 91 } goto backends; }
	chain backends {
		meta l4proto { tcp, udp } th dport 90 dnat to %[4]s
		meta l4proto { tcp, udp } th dport 91 dnat to %[5]s
	}
}`

// A Service with the address of a pod as its external address does not lead past egress policy, which allows that
// pod. On the fast path, such a Service has no effect.
func TestAttackExternalAddressOfPod(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		l := newLabWith(t, change)
		a, b, c := l.pod("a", 11), l.pod("b", 12), l.pod("c", 13)
		l.load(fmt.Sprintf(external, "ip", "10.1.0.11", "10.1.0.13", outsideAddr4+":8080", "10.1.0.12:8080"))
		l.load(fmt.Sprintf(external, "ip6", "fd01::b", "fd01::d", "["+outsideAddr6+"]:8080", "[fd01::c]:8080"))
		l.apply(isolate("a", model.Egress, accept(pods("b"), udp(8080)), accept(pods("c")), accept(block("0.0.0.0/0"), udp(controlPort)), accept(block("::/0"), udp(controlPort))))
		for l.idle() {
		}
		wa, wb, wc, wo, host := l.wire(a, "eth0"), l.wire(b, "eth0"), l.wire(c, "eth0"), l.wire(l.outside, "eth0"), l.hostMAC("a")
		tcpFrame := func(f addressSet, dst, flags, word string) []byte {
			return packet(wa.mac, host, ipHeader(f.a, dst, layers.IPProtocolTCP), &layers.TCP{SrcPort: 5000, DstPort: 90, SYN: flags == "SYN", ACK: flags == "ACK", Window: 100}, gopacket.Payload(word))
		}
		v := &volley{l: l}
		for _, f := range addressSets {
			for _, dst := range []string{f.a, f.c} {
				for _, flags := range []string{"ACK", "SYN"} {
					v.try(wa, wo, fmt.Sprintf("TCP %s from a to %s", flags, dst), func(word string) []byte { return tcpFrame(f, dst, flags, word) })
				}
				for range 2 {
					v.try(wa, wo, fmt.Sprintf("UDP from a to %s", dst), func(word string) []byte { return udpFrame(wa, host, f.a, dst, 5001, 90, word) })
				}
			}
			v.held(control{wa, wo, func(w string) []byte { return udpFrame(wa, host, f.a, f.out, 7, controlPort, w) }},
				control{wa, wb, func(w string) []byte { return udpFrame(wa, host, f.a, f.a, 5002, 91, w) }}, // policy allows that backend
				control{wa, wc, func(w string) []byte { return udpFrame(wa, host, f.a, f.c, 7, 80, w) }})
		}
	})
}
