// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/fastpath"
)

// protocols returns the transport layers of a forged packet, each with a word.
func protocols(v6 bool) map[string]func(word string) []gopacket.SerializableLayer {
	echo := func(word string) []gopacket.SerializableLayer {
		return []gopacket.SerializableLayer{&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: 5}, gopacket.Payload(word)}
	}
	if v6 {
		echo = func(word string) []gopacket.SerializableLayer {
			return []gopacket.SerializableLayer{&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(128, 0)}, &layers.ICMPv6Echo{Identifier: 5}, gopacket.Payload(word)}
		}
	}
	return map[string]func(string) []gopacket.SerializableLayer{
		"UDP": func(w string) []gopacket.SerializableLayer {
			return []gopacket.SerializableLayer{&layers.UDP{SrcPort: 1234, DstPort: 9999}, gopacket.Payload(w)}
		},
		"SYN": func(w string) []gopacket.SerializableLayer {
			return []gopacket.SerializableLayer{&layers.TCP{SrcPort: 1234, DstPort: 9999, SYN: true, Window: 100}, gopacket.Payload(w)}
		},
		"ACK": func(w string) []gopacket.SerializableLayer {
			return []gopacket.SerializableLayer{&layers.TCP{SrcPort: 1235, DstPort: 9999, ACK: true, Window: 100}, gopacket.Payload(w)}
		},
		"echo": echo,
		"GRE": func(w string) []gopacket.SerializableLayer {
			return []gopacket.SerializableLayer{gopacket.Payload(append([]byte{0, 0, 8, 0}, w...))}
		},
	}
}

func numberOf(protocol string, v6 bool) layers.IPProtocol {
	switch {
	case protocol == "UDP":
		return layers.IPProtocolUDP
	case protocol == "SYN", protocol == "ACK":
		return layers.IPProtocolTCP
	case protocol == "GRE":
		return layers.IPProtocolGRE
	case v6:
		return layers.IPProtocolICMPv6
	}
	return layers.IPProtocolICMPv4
}

// No host may send from the uplink with an address of this node or its pods.
func TestAttackSpoofFromUplink(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		g := newGuarded(t, change)
		g.pod("b", 12)
		wb := g.wire(g.pods["b"], "eth0")
		// The kernel drops some of these by itself, but only for IPv4.
		g.must(g.node.Do(func() error {
			return errors.Join(addresses("eth0", "192.168.9.77/24", "fd99::77/64"), sysctl("ipv4/conf/all/rp_filter", "0"), sysctl("ipv4/conf/eth0/rp_filter", "0"),
				sysctl("ipv4/conf/eth0/accept_local", "1"))
		}))
		g.guard(isolate("b", model.Ingress, accept(pods("a")), accept(block("10.1.0.0/24")), accept(block("fd01::/64")), accept(block("192.168.9.77/32")), accept(block("fd99::77/128"))))
		g.idleUntilQuiet()
		v := &volley{l: g.lab}
		for i, f := range addressSets {
			unknown, second := []string{"10.1.0.200", "fd01::c8"}[i], []string{"192.168.9.77", "fd99::77"}[i]
			for name, make := range protocols(f.v6) {
				for _, k := range []struct {
					what, src, dst string
					at             *wire
				}{
					{"as c itself to c", f.c, f.c, g.wc},
					{"as the node to c", f.node, f.c, g.wc},
					{"as another address of the node to c", second, f.c, g.wc},
					{"as a to c", f.a, f.c, g.wc},
					{"as a to b, which accepts a", f.a, f.b, wb},
					{"as b itself to b", f.b, f.b, wb},
					{"as the node to b", f.node, f.b, wb},
					{"as another address of the node to b, which accepts it", second, f.b, wb},
					{"as an address of the node's pod range to b, which accepts that", unknown, f.b, wb},
					{"as a through the node to outside", f.a, f.out, g.wo},
					{"as the node through the node to outside", f.node, f.out, g.wo},
				} {
					if g.plugin != nil && k.src == unknown {
						continue // the ranges of another CNI plugin are not known; rp_filter rejects the packet
					}
					v.try(g.wo, k.at, fmt.Sprintf("%s from the uplink %s", name, k.what), func(word string) []byte {
						return packet(g.wo.mac, g.up, ipHeader(k.src, k.dst, numberOf(name, f.v6)), make(word)...)
					})
				}
			}
			v.held(g.controls(f)...)
		}
		if n := g.drops("spoofed"); n < 60 {
			t.Errorf("%d packets are counted as spoofed, want 60 at least: IPv4 and IPv6, all but those that the kernel drops", n)
		}
	})
}

// A pod may send only from its own address, on every path.
func TestAttackSpoofFromPod(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		g := newGuarded(t, change)
		g.pod("b", 12)
		wb := g.wire(g.pods["b"], "eth0")
		g.guard(isolate("b", model.Ingress, accept(pods("c")), accept(block("192.168.9.0/24")), accept(block("fd99::/64"))))
		v := &volley{l: g.lab}
		for _, f := range addressSets {
			for name, make := range protocols(f.v6) {
				for _, k := range []struct{ what, src string }{
					{"as c", f.c}, {"as b itself", f.b}, {"as the node", f.node}, {"as outside", f.out}, {"as nobody", map[bool]string{false: "0.0.0.0", true: "::"}[f.v6]},
					{"as loopback", map[bool]string{false: "127.0.0.1", true: "::1"}[f.v6]},
				} {
					v.try(g.wa, wb, fmt.Sprintf("%s from a %s to b", name, k.what), func(word string) []byte {
						return packet(g.wa.mac, g.host, ipHeader(k.src, f.b, numberOf(name, f.v6)), make(word)...)
					})
				}
				v.try(g.wa, wb, name+" from a with another MAC to b", func(word string) []byte {
					return packet(g.wc.mac, g.host, ipHeader(f.a, f.b, numberOf(name, f.v6)), make(word)...)
				})
			}
			v.held(g.controls(f)...)
		}
	})
}

// A pod cannot reach sockets on the loopback addresses of the node, although its interface
// accepts packets to them.
func TestAttackLoopbackOfNode(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		g := newGuarded(t, change)
		g.must(g.node.Do(func() error {
			return errors.Join(sysctl("ipv4/conf/all/route_localnet", "1"), sysctl("ipv4/conf/all/rp_filter", "0"))
		}))
		lo := g.wire(g.node, "eth0") // not lo: the socket of hearOn checks arrival there
		v := &volley{l: g.lab}
		heard := g.hearOn(g.node, "127.0.0.1:9999")
		for range 20 {
			v.try(g.wa, lo, "UDP from a to 127.0.0.1", func(word string) []byte {
				return udpFrame(g.wa, g.host, "10.1.0.11", "127.0.0.1", 1, 9999, word)
			})
		}
		v.held(g.controls(addressSets[0])...)
		if heard() {
			t.Error("a socket on the node's loopback address hears a pod")
		}
		if n := g.drops("spoofed"); n < 20 {
			t.Errorf("%d packets are counted as spoofed, want 20", n)
		}
	})
}

// A known flow with a pod of another node does not continue by another device, also if that leads to other nodes. Here the pod is
// behind a tunnel, and a host on the segment of the uplink sends.
func TestAttackKnownFlowByAnotherDevice(t *testing.T) {
	t.Parallel()
	for _, forwarding := range []fastpath.Forwarding{fastpath.Direct, fastpath.Stack} {
		t.Run(string(forwarding), func(t *testing.T) {
			n := newNodes(t, func(c *linux.Config) { c.Fabric.Mode, c.Forwarding = fabric.Auto, forwarding })
			near, far := n[0], n[1]
			near.pod("c", 13)
			far.pod("b", 131)
			near.must(near.node.Do(func() error {
				return errors.Join(sysctl("ipv4/conf/all/rp_filter", "0"), sysctl("ipv4/conf/eth0/rp_filter", "0"))
			}))
			const outer = "192.168.19.33" // on another segment: by the tunnel
			third := withAddresses(nearAndFar[0], outer, "fd97::33")
			third.Name, third.PodCIDRs = "third", []netip.Prefix{netip.MustParsePrefix("10.1.1.0/24"), netip.MustParsePrefix("fd01:0:0:1::/64")}
			n.applyTo([]*model.Node{nearAndFar[0], nearAndFar[1], third}, isolate("c", model.Ingress, accept(block("10.1.1.0/24"), udp(9999)),
				accept(block("fd01:0:0:1::/64"), udp(9999)), accept(pods("b"), udp(controlPort))))
			near.must(near.node.Do(func() error { return sysctl("ipv4/conf/isthmus-vxlan/rp_filter", "0") }))
			wo, wb, wc := near.wire(far.node, "eth0"), near.wire(far.pods["b"], "eth0"), near.wire(near.pods["c"], "eth0")
			up, host := near.macIn(near.node, "eth0"), far.hostMAC("b")
			v := &volley{l: near}
			for i, f := range addressSets {
				src, b := []string{"10.1.1.7", "fd01:0:0:1::7"}[i], []string{"10.1.0.131", "fd01::83"}[i]
				throughTunnel := control{wo, wc, func(w string) []byte {
					return udpFrame(wo, up, outer, nodeAddr4, 33333, 4789, string(tunneled("near", src, f.c, w)))
				}}
				v.held(throughTunnel, throughTunnel)
				for i := range 3 {
					v.try(wo, wc, fmt.Sprintf("packet %d of a flow of %s by the uplink", i, src), func(word string) []byte { return udpFrame(wo, up, src, f.c, 1234, 9999, word) })
				}
				v.held(control{wb, wc, func(w string) []byte { return udpFrame(wb, host, b, f.c, 7, controlPort, w) }}, throughTunnel)
			}
		})
	}
}

// Packets of other nodes' pods must arrive by the device that leads to their node. The node
// forwards no packet that claims to come from its own pods.
func TestAttackSpoofBetweenNodes(t *testing.T) {
	t.Parallel()
	for _, mode := range []fabric.Mode{fabric.Routes, fabric.VXLAN} {
		for _, forwarding := range []fastpath.Forwarding{fastpath.Direct, fastpath.Stack} {
			t.Run(fmt.Sprintf("%s/%s", mode, forwarding), func(t *testing.T) {
				n := newNodes(t, func(c *linux.Config) { c.Fabric.Mode, c.Forwarding = mode, forwarding })
				near, far := n[0], n[1]
				near.pod("a", 11)
				near.pod("c", 13)
				far.pod("b", 131)
				far.pod("friend", 132)
				// A third segment of the node near, which leads to no pods.
				third := near.namespace("third")
				near.must(near.cableTo(third, "eth1"))
				near.must(near.node.Do(func() error {
					return errors.Join(addresses("eth1", "192.168.19.1/24", "fd98::1/64"), sysctl("ipv4/conf/all/rp_filter", "0"), sysctl("ipv4/conf/eth1/rp_filter", "0"),
						sysctl("ipv4/conf/eth1/forwarding", "1"))
				}))
				near.must(third.Do(func() error { return addresses("eth1", "192.168.19.2/24", "fd98::2/64") }))
				rules := []model.Rule{accept(pods("friend")), accept(pods("a")), accept(block("192.168.19.0/24"), udp(controlPort)), accept(block("fd98::/64"), udp(controlPort))}
				n.apply(isolate("c", model.Ingress, rules...), isolate("b", model.Ingress, rules...))
				wt, wa, wc, wb := near.wire(third, "eth1"), near.wire(near.pods["a"], "eth0"), near.wire(near.pods["c"], "eth0"), near.wire(far.pods["b"], "eth0")
				up, host := near.macIn(near.node, "eth1"), near.hostMAC("a")
				v := &volley{l: near}
				for i, f := range addressSets {
					b, friend, out := []string{"10.1.0.131", "fd01::83"}[i], []string{"10.1.0.132", "fd01::84"}[i], []string{"192.168.19.2", "fd98::2"}[i]
					for name, make := range protocols(f.v6) {
						for _, k := range []struct {
							what, src, dst string
							at             *wire
						}{
							{"as friend of the other node to c", friend, f.c, wc},
							{"as a to c", f.a, f.c, wc},
							{"as a to b of the other node", f.a, b, wb},
							{"as this node to c", f.node, f.c, wc},
							{"as this node to b of the other node", f.node, b, wb},
						} {
							v.try(wt, k.at, fmt.Sprintf("%s from a third segment %s", name, k.what), func(word string) []byte {
								return packet(wt.mac, up, ipHeader(k.src, k.dst, numberOf(name, f.v6)), make(word)...)
							})
						}
					}
					// Packets from elsewhere do not enter the tunnel: nodes send only packets
					// of their own pods. Without tunnels, nothing distinguishes a host on the
					// segment of the other node from that node.
					if mode == fabric.Routes {
						segment, uplink := near.wire(far.node, "eth0"), near.macIn(near.node, "eth0")
						v.held(control{segment, wc, func(w string) []byte { return udpFrame(segment, uplink, friend, f.c, 7, controlPort, w) }})
					}
					v.held(control{wt, wc, func(w string) []byte { return udpFrame(wt, up, out, f.c, 7, controlPort, w) }},
						control{wa, wb, func(w string) []byte { return udpFrame(wa, host, f.a, b, 7, controlPort, w) }})
				}
			})
		}
	}
}
