// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/fastpath"
	"github.com/isthmus-net/isthmus/test/netns"
)

// track makes the host stack reassemble fragments. It fragments the packets again when it forwards them.
const track = `
table ip6 track-test {
	chain forward { type filter hook forward priority 0; ct state invalid drop; }
}`

// refragmented is an IPv6 datagram in two fragments, whose payload begins with a word. Before it fragments the datagram
// again, the host stack copies it: the extension header of the first fragment does not fit before the second one.
type refragmented struct {
	src, dst string
	port     uint16
	// first and rest are the lengths of the fragments. A short datagram becomes a single packet with a fragment
	// header.
	first, rest int
}

// datagrams is the last identification of a datagram: tests run beside each other, and each datagram has its own.
var datagrams atomic.Uint32

var lengths = []refragmented{{first: 1008, rest: 1200}, {first: 600, rest: 400}}

func (d refragmented) send(from *wire, to net.HardwareAddr, word string) {
	from.t.Helper()
	udp := packet(from.mac, to, ipHeader(d.src, d.dst, layers.IPProtocolUDP), &layers.UDP{SrcPort: 9, DstPort: layers.UDPPort(d.port)},
		gopacket.Payload(append([]byte(word), make([]byte, d.first+d.rest-8-len(word))...)))[54:]
	hops := append([]byte{byte(layers.IPProtocolIPv6Fragment), 7, 0x1e, 60}, make([]byte, 60)...)
	id := datagrams.Add(1)
	fragment := func(offset int, more uint16) gopacket.Payload {
		h := []byte{byte(layers.IPProtocolUDP), 0}
		h = binary.BigEndian.AppendUint16(h, uint16(offset)|more)
		return binary.BigEndian.AppendUint32(h, id)
	}
	ip := func(next layers.IPProtocol) gopacket.SerializableLayer {
		h := ipHeader(d.src, d.dst, next).(*layers.IPv6)
		h.NextHeader = next
		return h
	}
	from.send(packet(from.mac, to, ip(layers.IPProtocolIPv6HopByHop), gopacket.Payload(hops), fragment(0, 1), gopacket.Payload(udp[:d.first])))
	from.send(packet(from.mac, to, ip(layers.IPProtocolIPv6Fragment), fragment(d.first, 0), gopacket.Payload(udp[d.first:])))
}

// try sends a datagram that must not arrive.
func (d refragmented) try(v *volley, from, at *wire, to net.HardwareAddr, what string) {
	v.l.t.Helper()
	word := v.word()
	v.tries = append(v.tries, attempted{fmt.Sprintf("%d bytes %s", d.first+d.rest, what), word, at})
	d.send(from, to, word)
}

// arrives sends a datagram that must arrive.
func (d refragmented) arrives(from, at *wire, to net.HardwareAddr, what string) {
	from.t.Helper()
	word := fmt.Sprintf("control-%d-", datagrams.Add(1))
	d.send(from, to, word)
	if !at.await(word) {
		from.t.Errorf("%d bytes %s, which are allowed, do not arrive", d.first+d.rest, what)
	}
}

// A packet that the kernel fragments again has lost the device by which it arrived. It is no packet of the node.
func TestAttackFragmentedAgain(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		g := newGuarded(t, change)
		g.load(track)
		v := &volley{l: g.lab}
		f := addressSets[1]
		for _, d := range lengths {
			d.dst, d.port = f.c, 9999
			for what, src := range map[string]string{"from outside to c": f.out, "from the uplink as a to c": f.a, "from the uplink as c to c": f.c, "from the uplink as the node to c": f.node} {
				d.src = src
				d.try(v, g.wo, g.wc, g.up, what)
			}
			d.src = f.a
			d.try(v, g.wa, g.wc, g.host, "from a to c")
			d.src, d.dst = f.out, f.a
			d.try(v, g.wo, g.wa, g.up, "from outside to a")
		}
		v.held(g.controls(f)...)
		for _, d := range lengths {
			d.dst, d.port = f.c, controlPort
			d.src = f.out
			d.arrives(g.wo, g.wc, g.up, "from outside to c")
			d.src = f.a
			d.arrives(g.wa, g.wc, g.host, "from a to c")
		}
		g.must(g.node.Do(func() error {
			c, err := net.Dial("udp", net.JoinHostPort(f.c, "9999"))
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write(append([]byte("from the node"), make([]byte, 4000)...))
			return err
		}))
		if !g.wc.await("from the node") {
			t.Error("fragments that the node sends to its pod do not arrive")
		}
	})
}

// nodesWithThird returns nodes on the fast path with the pods c and friend, and a host at eth1 of the first node.
func nodesWithThird(t *testing.T, change func(*linux.Config)) (n nodes, third *netns.NS) {
	t.Helper()
	n = newNodes(t, func(c *linux.Config) {
		change(c)
		c.Fabric.Mode, c.Forwarding = fabric.Routes, fastpath.Direct
	})
	n[0].pod("c", 13)
	n[1].pod("friend", 132)
	third = n[0].namespace("third")
	n[0].must(n[0].cableTo(third, "eth1"))
	return n, third
}

// Without the device, the programs cannot compare it with the source. So the program on FORWARD does.
func TestAttackFragmentedAgainBetweenNodes(t *testing.T) {
	t.Parallel()
	onOwnHooks(t, func(t *testing.T, change func(*linux.Config)) {
		n, third := nodesWithThird(t, change)
		near, far := n[0], n[1]
		near.must(near.node.Do(func() error { return addresses("eth1", "fd98::1/64") }))
		near.must(third.Do(func() error { return addresses("eth1", "fd98::2/64") }))
		near.load(track)
		n.apply(isolate("c", model.Ingress, accept(pods("friend")), accept(block("fd98::/64"), udp(controlPort))))
		wt, wc, wf := near.wire(third, "eth1"), near.wire(near.pods["c"], "eth0"), far.wire(far.pods["friend"], "eth0")
		v := &volley{l: near}
		const c, friend, out = "fd01::d", "fd01::84", "fd98::2"
		up := near.macIn(near.node, "eth1")
		for _, d := range lengths {
			d.src, d.dst, d.port = friend, c, 9999
			d.try(v, wt, wc, up, "from a third segment as friend of the other node to c")
			d.arrives(wf, wc, far.hostMAC("friend"), "from friend to c")
			d.src, d.port = out, controlPort
			d.arrives(wt, wc, up, "from a third segment to c")
		}
		v.held()
	})
}

// inFragments returns a datagram in two fragments. The word is in the second one.
func inFragments(from, to net.HardwareAddr, src, dst string, port uint16, id uint32, word string) [2][]byte {
	udp := packet(from, to, ipHeader(src, dst, layers.IPProtocolUDP), &layers.UDP{SrcPort: 9, DstPort: layers.UDPPort(port)}, gopacket.Payload(append(make([]byte, 56), word...)))
	data := [2][]byte{udp[len(udp)-64-len(word):][:64], []byte(word)}
	var out [2][]byte
	for i, part := range data {
		if is6(src) {
			h := []byte{byte(layers.IPProtocolUDP), 0, 0, byte(64*i + 1 - i)}
			out[i] = packet(from, to, ipHeader(src, dst, layers.IPProtocolIPv6Fragment), gopacket.Payload(append(binary.BigEndian.AppendUint32(h, id), part...)))
			continue
		}
		ip := ipHeader(src, dst, layers.IPProtocolUDP).(*layers.IPv4)
		ip.Id, ip.FragOffset = uint16(id), uint16(8*i)
		if i == 0 {
			ip.Flags = layers.IPv4MoreFragments
		}
		out[i] = packet(from, to, ip, gopacket.Payload(part))
	}
	return out
}

// The host stack does not complete a datagram of a pod by a fragment of another host with the address of the pod, whichever comes
// first.
func TestAttackForeignFragment(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		l := newServiceAttackLab(t, change)
		l.must(l.node.Do(func() error {
			return errors.Join(sysctl("ipv4/conf/all/rp_filter", "0"), sysctl("ipv4/conf/eth0/rp_filter", "0"))
		}))
		l.apply(isolate("b", model.Ingress, accept(pods("c"), udp(8080))))
		l.idleUntilQuiet()
		wb, wc, wo := l.wire(l.pods["b"], "eth0"), l.wire(l.pods["c"], "eth0"), l.wire(l.outside, "eth0")
		host, up := l.hostMAC("c"), l.macIn(l.node, "eth0")
		v := &volley{l: l}
		id := uint32(100)
		for i, f := range families {
			of := func(from, to net.HardwareAddr, word string) [2][]byte {
				return inFragments(from, to, addressSets[i].c, f.service, 80, id, word)
			}
			for _, first := range []bool{false, true} {
				id++
				word := v.word()
				v.tries = append(v.tries, attempted{fmt.Sprintf("the second fragment of a datagram of c to %s, from outside, before the first one: %t", f.service, first), word, wb})
				if first {
					wo.send(of(wo.mac, up, word)[1])
				}
				wc.send(of(wc.mac, host, word)[0])
				if !first {
					wo.send(of(wo.mac, up, word)[1])
				}
			}
			id++
			word := fmt.Sprintf("whole-%d", i)
			for _, part := range of(wc.mac, host, word) {
				wc.send(part)
			}
			if !wb.await(word) {
				t.Errorf("a datagram of c in fragments to %s does not arrive", f.service)
			}
		}
		v.held()
	})
}

// Nor does it complete a datagram of another node's pod by a fragment that arrives by a device that does not lead to that node.
func TestAttackForeignFragmentBetweenNodes(t *testing.T) {
	t.Parallel()
	onOwnHooks(t, func(t *testing.T, change func(*linux.Config)) {
		n, third := nodesWithThird(t, change)
		near, far := n[0], n[1]
		near.must(near.node.Do(func() error {
			return errors.Join(addresses("eth1", "192.168.8.1/24"), sysctl("ipv4/conf/all/rp_filter", "0"), sysctl("ipv4/conf/eth1/rp_filter", "0"))
		}))
		near.must(third.Do(func() error { return addresses("eth1", "192.168.8.2/24") }))
		near.load(strings.Replace(track, "ip6", "ip", 1))
		n.apply(isolate("c", model.Ingress, accept(pods("friend"))))
		const c, friend = "10.1.0.13", "10.1.0.132"
		wt, wc, wf := near.wire(third, "eth1"), near.wire(near.pods["c"], "eth0"), far.wire(far.pods["friend"], "eth0")
		host, up := far.hostMAC("friend"), near.macIn(near.node, "eth1")
		arrives := func(id uint32, word string) {
			for _, part := range inFragments(wf.mac, host, friend, c, 80, id, word) {
				wf.send(part)
			}
			if !wc.await(word) {
				t.Error("a datagram of friend in fragments does not arrive")
			}
		}
		arrives(7, "before")
		v := &volley{l: near}
		word := v.word()
		v.tries = append(v.tries, attempted{"the second fragment of a datagram of friend to c, from a third segment", word, wc})
		wt.send(inFragments(wt.mac, up, friend, c, 80, 8, word)[1])
		wf.send(inFragments(wf.mac, host, friend, c, 80, 8, word)[0]) // with the checksum of both
		wf.send(inFragments(wf.mac, host, friend, c, 80, 8, strings.Repeat("-", len(word)))[1])
		arrives(9, "after")
		v.held()
	})
}
