// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
)

// tunneled returns the payload of a tunnel packet: a datagram in a frame to the VTEP of a node.
func tunneled(node, src, dst, word string) []byte {
	vtep := fabric.VTEP(node)
	inner := packet(net.HardwareAddr{2, 1, 1, 1, 1, 1}, net.HardwareAddr(vtep[:]), ipHeader(src, dst, layers.IPProtocolUDP), &layers.UDP{SrcPort: 1234, DstPort: 9999}, gopacket.Payload(word))
	return append([]byte{8, 0, 0, 0, 0, 4096 >> 8, 4096 & 255, 0}, inner...)
}

// inner is a source of tunneled packets that only its node may send.
type inner struct{ what, node, src, dst string }

func inners(far, near string) []inner {
	return []inner{
		{"as friend of far to b of far", far, "10.1.0.132", "10.1.0.131"},
		{"as an address of near to b of far", far, "10.1.0.99", "10.1.0.131"},
		{"as pod a of near to b of far", far, "10.1.0.11", "10.1.0.131"},
		{"as b itself to b of far", far, "10.1.0.131", "10.1.0.131"},
		{"as far to b of far", far, outsideAddr4, "10.1.0.131"},
		{"as near to b of far", far, nodeAddr4, "10.1.0.131"},
		{"as friend of far to c of near", near, "10.1.0.132", "10.1.0.13"},
		{"as far to c of near", near, outsideAddr4, "10.1.0.13"},
		{"as near to c of near", near, nodeAddr4, "10.1.0.13"},
		{"as friend of far through near to b of far", near, "10.1.0.132", "10.1.0.131"},
		{"as friend of far to b of far, IPv6", far, "fd01::84", "fd01::83"},
		{"as pod a of near to b of far, IPv6", far, "fd01::b", "fd01::83"},
		{"as b itself to b of far, IPv6", far, "fd01::83", "fd01::83"},
		{"as far to b of far, IPv6", far, outsideAddr6, "fd01::83"},
		{"as near to b of far, IPv6", far, nodeAddr6, "fd01::83"},
		{"as friend of far to c of near, IPv6", near, "fd01::84", "fd01::d"},
		{"as near to c of near, IPv6", near, nodeAddr6, "fd01::d"},
	}
}

// A pod cannot send tunnel packets to any node, directly or by a Service.
func TestAttackTunnelFromPod(t *testing.T) {
	t.Parallel()
	onOwnHooks(t, func(t *testing.T, change func(*linux.Config)) {
		n := newNodes(t, func(c *linux.Config) { change(c); c.Fabric.Mode = fabric.VXLAN })
		near, far := n[0], n[1]
		near.pod("a", 11)
		near.pod("c", 13)
		far.pod("b", 131)
		far.pod("friend", 132)
		rules := []model.Rule{accept(pods("friend")), accept(pods("a"), udp(controlPort)), accept(block("192.168.9.0/24")), accept(block("fd99::/64"))}
		n.apply(isolate("b", model.Ingress, rules...), isolate("c", model.Ingress, accept(pods("friend")), accept(pods("a"), udp(controlPort))))
		near.must(near.node.Do(func() error { return sysctl("ipv4/conf/isthmus-vxlan/rp_filter", "0") }))
		far.must(far.node.Do(func() error { return sysctl("ipv4/conf/isthmus-vxlan/rp_filter", "0") }))
		// Service ports that lead to the tunnel port of either node.
		near.load(fmt.Sprintf("table ip kube-test {\nchain pre { type nat hook prerouting priority -100; ip daddr 10.96.0.11 udp dport 53 dnat to %s:4789; ip daddr 10.96.0.12 udp dport 53 dnat to %s:4789; }\n}", nodeAddr4, outsideAddr4))
		wa, wb, wc := near.wire(near.pods["a"], "eth0"), near.wire(far.pods["b"], "eth0"), near.wire(near.pods["c"], "eth0")
		host := near.hostMAC("a")
		v := &volley{l: near}
		for _, k := range inners("far", "near") {
			at := wb
			if k.dst == "10.1.0.13" || k.dst == "fd01::d" {
				at = wc
			}
			outer := map[string]string{"far": outsideAddr4, "near": nodeAddr4}[k.node]
			service := map[string]string{"far": "10.96.0.12", "near": "10.96.0.11"}[k.node]
			v.try(wa, at, "pod a by tunnel "+k.what, func(word string) []byte {
				return udpFrame(wa, host, "10.1.0.11", outer, 33333, 4789, string(tunneled(k.node, k.src, k.dst, word)))
			})
			v.try(wa, at, "pod a by a Service and tunnel "+k.what, func(word string) []byte {
				return udpFrame(wa, host, "10.1.0.11", service, 33334, 53, string(tunneled(k.node, k.src, k.dst, word)))
			})
		}
		v.held(control{wa, wb, func(w string) []byte {
			return udpFrame(wa, host, "10.1.0.11", "10.1.0.131", 7, controlPort, w)
		}}, control{wa, wc, func(w string) []byte { return udpFrame(wa, host, "10.1.0.11", "10.1.0.13", 7, controlPort, w) }})
		if n := near.drops("tunnel"); n < 2*uint64(len(inners("", ""))) {
			t.Errorf("%d packets are counted as tunnel", n)
		}
	})
}

// A node accepts tunneled packets only from known nodes, and only with inner sources of the
// sending node.
func TestAttackTunnelFromSegment(t *testing.T) {
	t.Parallel()
	onOwnHooks(t, func(t *testing.T, change func(*linux.Config)) {
		n := newNodes(t, func(c *linux.Config) { change(c); c.Fabric.Mode = fabric.VXLAN })
		near, far := n[0], n[1]
		near.pod("a", 11)
		near.pod("c", 13)
		far.pod("b", 131)
		far.pod("friend", 132)
		third := &model.Node{Name: "third", OS: model.Linux, Addresses: []netip.Addr{netip.MustParseAddr("192.168.9.33")},
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.1.0/24")}}
		n.applyTo(append(slices.Clone(nearAndFar[:]), third), isolate("c", model.Ingress, accept(pods("friend")),
			accept(block("192.168.9.0/24")), accept(block("fd99::/64")), accept(block("10.1.1.0/24"))))
		near.must(near.node.Do(func() error {
			return errors.Join(sysctl("ipv4/conf/isthmus-vxlan/rp_filter", "0"), sysctl("ipv4/conf/all/rp_filter", "0"))
		}))
		// The uplink of far stands for any host on the segment.
		wo, wc := near.wire(far.node, "eth0"), near.wire(near.pods["c"], "eth0")
		up := near.macIn(near.node, "eth0")
		v := &volley{l: near}
		for _, source := range []struct {
			what, outer string
			may         func(src string) bool
		}{
			{"an unknown host", "192.168.9.99", func(string) bool { return false }},
			{"near itself", nodeAddr4, func(string) bool { return false }},
			{"far", outsideAddr4, func(src string) bool {
				return src == "10.1.0.132" || src == "fd01::84" || src == outsideAddr4 || src == outsideAddr6
			}},
		} {
			for i, f := range addressSets {
				for _, src := range []string{[]string{"10.1.0.132", "fd01::84"}[i], f.a, f.c, f.node, f.out, []string{"10.7.0.1", "fd07::1"}[i]} {
					if source.may(src) {
						continue // a valid source of that node
					}
					v.try(wo, wc, fmt.Sprintf("tunnel from %s with inner source %s", source.what, src), func(word string) []byte {
						return udpFrame(wo, up, source.outer, nodeAddr4, 33333, 4789, string(tunneled("near", src, f.c, word)))
					})
				}
			}
		}
		for _, src := range []string{"10.1.1.7", "192.168.9.33"} { // of another node in the fabric
			v.try(wo, wc, "tunnel from far with inner source "+src+" of a third node", func(word string) []byte {
				return udpFrame(wo, up, outsideAddr4, nodeAddr4, 33333, 4789, string(tunneled("near", src, "10.1.0.13", word)))
			})
		}
		for _, kind := range []uint16{0x0806, 0x8100, 0x88cc} { // ARP, tagged, LLDP
			v.try(wo, wc, fmt.Sprintf("tunnel from far with a frame of type %#x", kind), func(word string) []byte {
				frame := tunneled("near", "10.1.0.132", "10.1.0.13", word)
				frame[8+12], frame[8+13] = byte(kind>>8), byte(kind)
				return udpFrame(wo, up, outsideAddr4, nodeAddr4, 33333, 4789, string(frame))
			})
		}
		v.held(control{wo, wc, func(w string) []byte {
			return udpFrame(wo, up, outsideAddr4, nodeAddr4, 33333, 4789, string(tunneled("near", "10.1.0.132", "10.1.0.13", w)))
		}})
		if near.drops("tunnel") < 20 {
			t.Errorf("%d packets are counted as tunnel", near.drops("tunnel"))
		}
	})
}
