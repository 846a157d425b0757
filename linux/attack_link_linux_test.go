// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/link"
)

// linkLocalOf returns the link-local address of an interface of the node.
func (l *lab) linkLocalOf(name string) (found string) {
	l.t.Helper()
	l.must(l.node.Do(func() error {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		all, err := i.Addrs()
		for _, a := range all {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsLinkLocalUnicast() {
				found = p.Addr().WithZone("").String()
			}
		}
		return err
	}))
	if found == "" {
		l.t.Fatalf("interface %s has no link-local address", name)
	}
	return found
}

// Policy names the node by its addresses in the API. A pod that may send anywhere but there does not reach the node by
// addresses of the link between the two, nor does it fill the neighbour table of the node with them.
func TestAttackAddressesOfTheLink(t *testing.T) {
	t.Parallel()
	onOwnHooks(t, func(t *testing.T, change func(*linux.Config)) {
		l := newLabWith(t, change)
		a := l.pod("a", 11)
		l.apply(isolate("a", model.Egress, accept(model.Peer{Kind: model.PeerBlock, Block: model.IPBlock{CIDR: netip.MustParsePrefix("0.0.0.0/0"),
			Except: []netip.Prefix{netip.MustParsePrefix(nodeAddr4 + "/32")}}}), accept(model.Peer{Kind: model.PeerBlock, Block: model.IPBlock{
			CIDR: netip.MustParsePrefix("::/0"), Except: []netip.Prefix{netip.MustParsePrefix(nodeAddr6 + "/128")}}})))
		for l.idle() {
		}
		name := link.HostName(model.MakeEndpointID("a", "eth0"))
		wa, wo, host, before := l.wire(a, "eth0"), l.wire(l.outside, "eth0"), l.hostMAC("a"), l.neighbours(name)
		heard := l.hearOn(l.node, "[::]:9999")
		all := net.HardwareAddr{255, 255, 255, 255, 255, 255}
		targets := []string{nodeAddr4, nodeAddr6, l.linkLocalOf(name), "ff02::1", "ff05::2", "224.0.0.1", "224.0.0.251", "255.255.255.255",
			"192.168.9.255", "fd99::"} // broadcast and anycast of the uplink
		for i := range 100 {
			targets = append(targets, fmt.Sprintf("fe80::dead:%x", i))
		}
		v := &volley{l: l}
		for _, dst := range targets {
			for _, mac := range []net.HardwareAddr{host, all} {
				// No wire of outside sees them. The socket hears them, and the table counts them.
				v.try(wa, wo, "UDP from a to "+dst, func(word string) []byte {
					return udpFrame(wa, mac, map[bool]string{false: "10.1.0.11", true: "fd01::b"}[is6(dst)], dst, 1234, 9999, word)
				})
			}
		}
		for src, dst := range map[string]string{"10.1.0.11": "192.168.9.255", "fd01::b": "fd99::"} {
			v.try(wa, wo, "an unknown protocol from a to "+dst, func(word string) []byte {
				return packet(wa.mac, host, ipHeader(src, dst, 253), gopacket.Payload(word))
			})
		}
		for _, f := range addressSets {
			v.held(control{wa, wo, func(w string) []byte { return udpFrame(wa, host, f.a, f.out, 1234, 9999, w) }})
		}
		if heard() {
			t.Error("a socket of the node hears the pod")
		}
		if after := l.neighbours(name); after > before+2 {
			t.Errorf("the host had %d neighbours on the pod's interface, and has %d", before, after)
		}
		// Policy denies the four to addresses that it names.
		if n, want := l.drops("neighbour"), uint64(2*len(targets)-4+2); n != want {
			t.Errorf("%d packets are counted as dropped, want %d", n, want)
		}
	})
}
