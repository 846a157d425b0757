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

// underlay is a kind of addresses between nodes. Tunnels use IPv4 where the uplink has an IPv4 address.
type underlay struct {
	name    string
	cluster [2]*model.Node
	v6      bool
}

var underlays = []underlay{
	{"IPv4", nearAndFar, false},
	{"IPv6", [2]*model.Node{withAddresses(nearAndFar[0], nodeAddr6), withAddresses(nearAndFar[1], outsideAddr6)}, true},
}

// withAddresses returns a node that has only these addresses.
func withAddresses(n *model.Node, all ...string) *model.Node {
	other := *n
	other.Addresses = nil
	for _, a := range all {
		other.Addresses = append(other.Addresses, netip.MustParseAddr(a))
	}
	return &other
}

// of returns the address of the underlay's family.
func (u underlay) of(v4, v6 string) string {
	if u.v6 {
		return v6
	}
	return v4
}

// onUnderlays runs an attack on tunnels over both IP versions, on the hooks of onOwnHooks. rp_filter does not help the
// nodes.
func onUnderlays(t *testing.T, attack func(*testing.T, underlay, nodes)) {
	onOwnHooks(t, func(t *testing.T, change func(*linux.Config)) {
		for _, u := range underlays {
			t.Run(u.name, func(t *testing.T) {
				n := newNodesOn(t, u.cluster, func(c *linux.Config) { change(c); c.Fabric.Mode = fabric.VXLAN })
				for _, l := range n {
					l.must(l.node.Do(func() error {
						return errors.Join(sysctl("ipv4/conf/all/rp_filter", "0"), sysctl("ipv4/conf/default/rp_filter", "0"), sysctl("ipv4/conf/eth0/rp_filter", "0"),
							sysctl("ipv4/conf/eth0/accept_local", "1"))
					}))
				}
				near, far := n[0], n[1]
				near.pod("a", 11)
				near.pod("c", 13)
				far.pod("b", 131)
				far.pod("friend", 132)
				attack(t, u, n)
			})
		}
	})
}

// A pod cannot send tunnel packets to any node, directly or by a Service.
func TestAttackTunnelFromPod(t *testing.T) {
	t.Parallel()
	onUnderlays(t, func(t *testing.T, u underlay, n nodes) {
		near, far := n[0], n[1]
		rules := []model.Rule{accept(pods("friend")), accept(pods("a"), udp(controlPort)), accept(block("192.168.9.0/24")), accept(block("fd99::/64"))}
		n.applyTo(u.cluster[:], isolate("b", model.Ingress, rules...), isolate("c", model.Ingress, accept(pods("friend")), accept(pods("a"), udp(controlPort))))
		for _, l := range n {
			l.must(l.node.Do(func() error { return sysctl("ipv4/conf/isthmus-vxlan/rp_filter", "0") }))
		}
		// Service ports that lead to the tunnel port of either node.
		services := map[string]string{"near": u.of("10.96.0.11", "fd96::11"), "far": u.of("10.96.0.12", "fd96::12")}
		addrs := map[string]string{"near": u.of(nodeAddr4, nodeAddr6), "far": u.of(outsideAddr4, outsideAddr6)}
		family := u.of("ip", "ip6")
		for name, service := range services {
			near.load(fmt.Sprintf("table %s kube-test {\nchain pre-%s { type nat hook prerouting priority -100; %s daddr %s udp dport 53 dnat to %s; }\n}",
				family, name, family, service, net.JoinHostPort(addrs[name], "4789")))
		}
		wa, wb, wc := near.wire(near.pods["a"], "eth0"), near.wire(far.pods["b"], "eth0"), near.wire(near.pods["c"], "eth0")
		host, own := near.hostMAC("a"), u.of("10.1.0.11", "fd01::b")
		v := &volley{l: near}
		for _, k := range inners("far", "near") {
			at := wb
			if k.dst == "10.1.0.13" || k.dst == "fd01::d" {
				at = wc
			}
			v.try(wa, at, "pod a by tunnel "+k.what, func(word string) []byte {
				return udpFrame(wa, host, own, addrs[k.node], 33333, 4789, string(tunneled(k.node, k.src, k.dst, word)))
			})
			v.try(wa, at, "pod a by a Service and tunnel "+k.what, func(word string) []byte {
				return udpFrame(wa, host, own, services[k.node], 33334, 53, string(tunneled(k.node, k.src, k.dst, word)))
			})
		}
		sent := uint64(len(v.tries))
		v.held(control{wa, wb, func(w string) []byte {
			return udpFrame(wa, host, "10.1.0.11", "10.1.0.131", 7, controlPort, w)
		}}, control{wa, wc, func(w string) []byte { return udpFrame(wa, host, "10.1.0.11", "10.1.0.13", 7, controlPort, w) }})
		if n := near.drops("tunnel"); n != sent {
			t.Errorf("%d packets are counted as tunnel, want %d", n, sent)
		}
	})
}

// A node accepts tunneled packets only from known nodes, and only with inner sources of the
// sending node.
func TestAttackTunnelFromSegment(t *testing.T) {
	t.Parallel()
	onUnderlays(t, func(t *testing.T, u underlay, n nodes) {
		near, far := n[0], n[1]
		third := withAddresses(u.cluster[0], u.of("192.168.9.33", "fd99::33"))
		third.Name, third.PodCIDRs = "third", []netip.Prefix{netip.MustParsePrefix("10.1.1.0/24")}
		n.applyTo(append(slices.Clone(u.cluster[:]), third), isolate("c", model.Ingress, accept(pods("friend")),
			accept(block("192.168.9.0/24")), accept(block("fd99::/64")), accept(block("10.1.1.0/24"))))
		near.must(near.node.Do(func() error { return sysctl("ipv4/conf/isthmus-vxlan/rp_filter", "0") }))
		// The uplink of far stands for any host on the segment.
		wo, wc := near.wire(far.node, "eth0"), near.wire(near.pods["c"], "eth0")
		up, own := near.macIn(near.node, "eth0"), u.of(nodeAddr4, nodeAddr6)
		v := &volley{l: near}
		try := func(what, outer string, payload func(word string) []byte) {
			v.try(wo, wc, what, func(word string) []byte { return udpFrame(wo, up, outer, own, 33333, 4789, string(payload(word))) })
		}
		fromFar := u.of(outsideAddr4, outsideAddr6)
		for _, source := range []struct {
			what, outer string
			may         []string
		}{
			{"an unknown host", u.of("192.168.9.99", "fd99::99"), nil},
			{"near itself", own, nil},
			// A node may send with its own addresses (ADR 36).
			{"far", fromFar, append([]string{"10.1.0.132", "fd01::84"}, texts(u.cluster[1].Addresses)...)},
		} {
			for i, f := range addressSets {
				for _, src := range []string{[]string{"10.1.0.132", "fd01::84"}[i], f.a, f.c, f.node, f.out, []string{"10.7.0.1", "fd07::1"}[i]} {
					if !slices.Contains(source.may, src) {
						try(fmt.Sprintf("tunnel from %s with inner source %s", source.what, src), source.outer, func(word string) []byte { return tunneled("near", src, f.c, word) })
					}
				}
			}
		}
		for _, src := range append(texts(third.Addresses), "10.1.1.7") {
			dst := "10.1.0.13"
			if is6(src) {
				dst = "fd01::d"
			}
			try("tunnel from far with inner source "+src+" of a third node", fromFar, func(word string) []byte { return tunneled("near", src, dst, word) })
		}
		for _, kind := range []uint16{0x0806, 0x8100, 0x88cc} { // ARP, tagged, LLDP
			try(fmt.Sprintf("tunnel from far with a frame of type %#x", kind), fromFar, func(word string) []byte {
				frame := tunneled("near", "10.1.0.132", "10.1.0.13", word)
				frame[8+12], frame[8+13] = byte(kind>>8), byte(kind)
				return frame
			})
		}
		sent := uint64(len(v.tries))
		var controls []control
		for _, pair := range [][2]string{{"10.1.0.132", "10.1.0.13"}, {"fd01::84", "fd01::d"}} {
			controls = append(controls, control{wo, wc, func(w string) []byte {
				return udpFrame(wo, up, fromFar, own, 33333, 4789, string(tunneled("near", pair[0], pair[1], w)))
			}})
		}
		v.held(controls...)
		if n := near.drops("tunnel"); n != sent {
			t.Errorf("%d packets are counted as tunnel, want %d", n, sent)
		}
	})
}

func texts(addrs []netip.Addr) (all []string) {
	for _, a := range addrs {
		all = append(all, a.String())
	}
	return all
}
