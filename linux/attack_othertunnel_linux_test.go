// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/test/netns"
)

// The tunnels of flannel: the kernel allows one device for each IP version of the underlay.
const (
	flannelPort    = 8472
	flannelDevice  = "flannel.1"
	flannelDevice6 = "flannel-v6.1"
)

// flannelTunnels makes the devices of another plugin's tunnels, with routes to the pods of other nodes.
func flannelTunnels() error {
	for name, local := range map[string]string{flannelDevice: nodeAddr4, flannelDevice6: nodeAddr6} {
		v := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: name}, VxlanId: 1, Port: flannelPort, SrcAddr: net.ParseIP(local), Learning: false}
		if err := errors.Join(netlink.LinkAdd(v), netns.Up(name)); err != nil {
			return fmt.Errorf("make %s: %w", name, err)
		}
	}
	return errors.Join(addresses(flannelDevice, "10.1.5.1/24"), addresses(flannelDevice6, "fd01:5::1/64"),
		sysctl("ipv4/conf/all/rp_filter", "0"), sysctl("ipv4/conf/"+flannelDevice+"/rp_filter", "0"))
}

// A pod cannot send packets by a tunnel of another plugin, directly or by a Service. Their sources would be of its choice.
func TestAttackTunnelOfAnotherPlugin(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		l := newLabWith(t, change)
		l.pod("a", 11)
		l.pod("b", 12)
		wa, wb, wo := l.wire(l.pods["a"], "eth0"), l.wire(l.pods["b"], "eth0"), l.wire(l.outside, "eth0")
		l.must(l.node.Do(flannelTunnels))
		for i, f := range families {
			family, service := []string{"ip", "ip6"}[i], []string{"10.96.0.11", "fd96::11"}[i]
			l.load(fmt.Sprintf("table %s kube-test {\nchain pre { type nat hook prerouting priority -100; %s daddr %s udp dport 53 dnat to %s; }\n}",
				family, family, service, net.JoinHostPort(f.node, fmt.Sprint(flannelPort))))
		}
		l.apply(isolate("b", model.Ingress, accept(block("10.1.5.0/24")), accept(block("fd01:5::/64")), accept(pods("a"), udp(controlPort))))
		l.idleUntilQuiet()
		v := &volley{l: l}
		var controls []control
		for i, f := range addressSets {
			far, service := []string{"10.1.5.9", "fd01:5::9"}[i], []string{"10.96.0.11", "fd96::11"}[i]
			vtep := l.macIn(l.node, []string{flannelDevice, flannelDevice6}[i])
			inner := func(word string) string {
				frame := packet(net.HardwareAddr{2, 1, 1, 1, 1, 1}, vtep, ipHeader(far, f.b, layers.IPProtocolUDP), &layers.UDP{SrcPort: 1234, DstPort: 9999}, gopacket.Payload(word))
				return string(append([]byte{8, 0, 0, 0, 0, 0, 1, 0}, frame...))
			}
			host, up := l.hostMAC("a"), l.macIn(l.node, "eth0")
			v.try(wa, wb, "pod a by the tunnel of another plugin to "+f.b, func(word string) []byte {
				return udpFrame(wa, host, f.a, f.node, 33333, flannelPort, inner(word))
			})
			v.try(wa, wb, "pod a by a Service and the tunnel of another plugin to "+f.b, func(word string) []byte {
				return udpFrame(wa, host, f.a, service, 33334, 53, inner(word))
			})
			v.try(wa, wo, "pod a to the tunnel of another node at "+f.out, func(word string) []byte {
				return udpFrame(wa, host, f.a, f.out, 33335, flannelPort, inner(word))
			})
			controls = append(controls, control{wo, wb, func(w string) []byte { // another node
				return udpFrame(wo, up, f.out, f.node, 33333, flannelPort, inner(w))
			}}, control{wa, wo, func(w string) []byte { return udpFrame(wa, host, f.a, f.out, 33336, controlPort, w) }})
		}
		sent := uint64(len(v.tries))
		v.held(controls...)
		if n := l.drops("tunnel"); n != sent {
			t.Errorf("%d packets are counted as tunnel, want %d", n, sent)
		}
	})
}
