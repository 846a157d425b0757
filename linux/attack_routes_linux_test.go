// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/test/netns"
)

// acceptSourceRoutes makes a host forward packets by the routes that their senders wrote into them, as no host does by default.
func (l *lab) acceptSourceRoutes(ns *netns.NS) {
	l.t.Helper()
	l.must(ns.Do(func() error {
		for _, pattern := range []string{"ipv4/conf/*/accept_source_route", "ipv6/conf/*/seg6_enabled"} {
			found, err := filepath.Glob("/proc/sys/net/" + pattern)
			if err != nil {
				return err
			}
			for _, name := range found {
				if err := os.WriteFile(name, []byte("1"), 0); err != nil {
					return err
				}
			}
		}
		return nil
	}))
}

// sourceRoute returns an option of IPv4: the loose source route, of which at is the next hop to visit, counted from 1.
func sourceRoute(at int, hops ...string) layers.IPv4Option {
	o := layers.IPv4Option{OptionType: 131, OptionLength: uint8(3 + 4*len(hops)), OptionData: []byte{byte(4 * at)}}
	for _, h := range hops {
		o.OptionData = append(o.OptionData, netip.MustParseAddr(h).AsSlice()...)
	}
	return o
}

// segments returns a segment routing header of IPv6, whose segments are in reverse order.
func segments(next layers.IPProtocol, left byte, hops ...string) gopacket.Payload {
	h := []byte{byte(next), byte(2 * len(hops)), 4, left, byte(len(hops) - 1), 0, 0, 0}
	for _, hop := range hops {
		h = append(h, netip.MustParseAddr(hop).AsSlice()...)
	}
	return h
}

// routed returns a packet to the first hop of a route, which names a second one.
func routed(from *wire, mac []byte, src, hop, dst string, protocol layers.IPProtocol, l4 ...gopacket.SerializableLayer) []byte {
	if !is6(src) {
		ip := ipHeader(src, hop, protocol).(*layers.IPv4)
		ip.Options = []layers.IPv4Option{sourceRoute(1, dst)}
		return packet(from.mac, mac, ip, l4...)
	}
	ip := ipHeader(src, hop, 43).(*layers.IPv6)
	return packet(from.mac, mac, ip, append([]gopacket.SerializableLayer{segments(protocol, 1, dst, hop)}, l4...)...)
}

// newRoutedLab returns a lab whose node follows source routes. Policy allows pod a to reach the node, and controlPort elsewhere. Pod b
// receives controlPort only, and c everything.
func newRoutedLab(t *testing.T, change func(*linux.Config)) *guarded {
	t.Helper()
	g := &guarded{lab: newLabWith(t, change)}
	g.a, g.c = g.pod("a", 11), g.pod("c", 13)
	g.pod("b", 12)
	anywhere := []model.Rule{accept(block("0.0.0.0/0"), udp(controlPort)), accept(block("::/0"), udp(controlPort))}
	g.apply(isolate("b", model.Ingress, anywhere...),
		isolate("a", model.Egress, append(anywhere, accept(block(nodeAddr4+"/32")), accept(block(nodeAddr6+"/128")))...))
	g.wa, g.wc, g.wo = g.wire(g.a, "eth0"), g.wire(g.c, "eth0"), g.wire(g.outside, "eth0")
	g.host, g.up = g.hostMAC("a"), g.macIn(g.node, "eth0")
	for g.idle() {
	}
	g.acceptSourceRoutes(g.node)
	return g
}

// A pod whose policy allows its node, but no other address, reaches none through the node by source routes, also if the node
// follows them.
func TestAttackSourceRoutes(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		g := newRoutedLab(t, change)
		for _, f := range addressSets {
			v := &volley{l: g.lab}
			for _, dst := range []struct {
				addr string
				at   *wire
			}{{f.c, g.wc}, {f.out, g.wo}} {
				v.try(g.wa, dst.at, "UDP from a by the node to "+dst.addr, func(word string) []byte {
					return routed(g.wa, g.host, f.a, f.node, dst.addr, layers.IPProtocolUDP, &layers.UDP{SrcPort: 1234, DstPort: 9999}, gopacket.Payload(word))
				})
				v.try(g.wa, dst.at, "an unknown protocol from a by the node to "+dst.addr, func(word string) []byte {
					return routed(g.wa, g.host, f.a, f.node, dst.addr, 253, gopacket.Payload(word))
				})
			}
			v.held(g.controls(f)...)
		}
	})
}

// The kernel takes a packet out of one with a segment routing header that has no segments left. A pod does not send with another
// address by it, or to an address that its policy denies.
func TestAttackInnerPacket(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		g := newRoutedLab(t, change)
		six, v := addressSets[1], &volley{l: g.lab}
		for _, f := range addressSets {
			protocol := map[bool]layers.IPProtocol{false: layers.IPProtocolIPv4, true: layers.IPProtocolIPv6}[f.v6]
			for src, inner := range map[string]string{"its own address": f.a, "that of c": f.c, "that of the node": f.node} {
				v.try(g.wa, g.wo, "a packet from a with "+src+" in another, to "+f.out, func(word string) []byte {
					datagram := udpFrame(g.wa, g.host, inner, f.out, 1234, 9999, word)[14:]
					return packet(g.wa.mac, g.host, ipHeader(six.a, six.node, 43), segments(protocol, 0, six.node), gopacket.Payload(datagram))
				})
			}
		}
		v.held(g.controls(six)...)
	})
}

// addUnpackingRoutes adds routes that take packets out of others: Ethernet frames, IPv4 and IPv6.
func addUnpackingRoutes() error {
	uplink, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	for sid, r := range map[string]struct {
		attribute int
		encap     netlink.SEG6LocalEncap
	}{
		"fd00:51d::2": {nl.SEG6_LOCAL_OIF, netlink.SEG6LocalEncap{Action: nl.SEG6_LOCAL_ACTION_END_DX2, Oif: uplink.Attrs().Index}},
		"fd00:51d::4": {nl.SEG6_LOCAL_NH4, netlink.SEG6LocalEncap{Action: nl.SEG6_LOCAL_ACTION_END_DX4, InAddr: net.ParseIP(outsideAddr4)}},
		"fd00:51d::6": {nl.SEG6_LOCAL_TABLE, netlink.SEG6LocalEncap{Action: nl.SEG6_LOCAL_ACTION_END_DT6, Table: unix.RT_TABLE_MAIN}},
	} {
		r.encap.Flags[nl.SEG6_LOCAL_ACTION], r.encap.Flags[r.attribute] = true, true
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: uplink.Attrs().Index, Dst: netlink.NewIPNet(net.ParseIP(sid)), Encap: &r.encap}); err != nil {
			return fmt.Errorf("add the route of %s: %w", sid, err)
		}
	}
	return nil
}

// A node may have routes of SRv6 that take a packet out of another without a segment routing header. A pod whose policy allows
// their addresses does not send with another address by them, or to an address that its policy denies.
func TestAttackUnpackingRoutes(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		g := newRoutedLab(t, change)
		anywhere := []model.Rule{accept(block("0.0.0.0/0"), udp(controlPort)), accept(block("::/0"), udp(controlPort))}
		g.apply(isolate("b", model.Ingress, anywhere...), isolate("a", model.Egress, append(anywhere, accept(block("fd00:51d::/64")))...))
		g.must(g.node.Do(addUnpackingRoutes))
		wb := g.wire(g.pods["b"], "eth0")
		outer := func(sid string, protocol layers.IPProtocol, inner []byte) []byte {
			return packet(g.wa.mac, g.host, ipHeader(addressSets[1].a, sid, protocol), gopacket.Payload(inner))
		}
		for _, f := range addressSets {
			v := &volley{l: g.lab}
			sid, protocol := "fd00:51d::4", layers.IPProtocolIPv4
			if f.v6 {
				sid, protocol = "fd00:51d::6", layers.IPProtocolIPv6
			}
			for src, inner := range map[string]string{"its own address": f.a, "that of c": f.c, "that of the node": f.node, "that of outside": f.out} {
				v.try(g.wa, g.wo, "a packet from a with "+src+" in another, to "+f.out, func(word string) []byte {
					return outer(sid, protocol, udpFrame(g.wa, g.host, inner, f.out, 1234, 9999, word)[14:])
				})
				v.try(g.wa, wb, "a packet from a with "+src+" in another, to "+f.b, func(word string) []byte {
					return outer(sid, protocol, udpFrame(g.wa, g.host, inner, f.b, 1234, 9999, word)[14:])
				})
				v.try(g.wa, g.wo, "a packet from a with "+src+" in a frame in another, to "+f.out, func(word string) []byte {
					return outer("fd00:51d::2", layers.IPProtocol(unix.IPPROTO_ETHERNET), udpFrame(g.wa, g.wo.mac, inner, f.out, 1234, 9999, word))
				})
			}
			v.held(g.controls(f)...)
		}
	})
}

// A host that answers a packet with an IPv4 source route sends the answer back by that route. Neither a host nor a pod
// has the node send to a pod that denies it, by a route of which that pod is a part.
func TestAttackAnswersByRoute(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		g := newRoutedLab(t, change)
		wb := g.wire(g.pods["b"], "eth0")
		f := addressSets[0]
		echo := func(from *wire, mac net.HardwareAddr, src string) func(string) []byte {
			return func(word string) []byte {
				ip := ipHeader(src, f.node, layers.IPProtocolICMPv4).(*layers.IPv4)
				ip.Options = []layers.IPv4Option{sourceRoute(2, f.b)}
				return packet(from.mac, mac, ip, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: 77}, gopacket.Payload(word))
			}
		}
		v := &volley{l: g.lab}
		v.try(g.wo, wb, "an answer to outside by b", echo(g.wo, g.up, f.out))
		v.try(g.wa, wb, "an answer to a by b", echo(g.wa, g.host, f.a))
		v.held(control{g.wo, wb, func(w string) []byte { return udpFrame(g.wo, g.up, f.out, f.b, 1234, controlPort, w) }},
			control{g.wa, wb, func(w string) []byte { return udpFrame(g.wa, g.host, f.a, f.b, 1234, controlPort, w) }})
	})
}
