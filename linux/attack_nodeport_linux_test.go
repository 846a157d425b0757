// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
)

// A host that is no node cannot send tunneled packets through a Service that leads to the tunnel port of a node. The node of the
// Service would masquerade it: to the other node, the packet would come from a node.
func TestAttackTunnelByNodePort(t *testing.T) {
	t.Parallel()
	onUnderlays(t, func(t *testing.T, u underlay, n nodes) {
		near, far := n[0], n[1]
		n.applyTo(u.cluster[:], isolate("b", model.Ingress, accept(pods("a"))))
		far.must(far.node.Do(func() error { return sysctl("ipv4/conf/isthmus-vxlan/rp_filter", "0") }))
		own, other, stranger := u.of(nodeAddr4, nodeAddr6), u.of(outsideAddr4, outsideAddr6), u.of("192.168.9.99", "fd99::99")
		near.load(fmt.Sprintf(`table inet kube-test-nodeport {
			chain pre { type nat hook prerouting priority -100; udp dport 30053 dnat %s to %s; }
			chain post { type nat hook postrouting priority 100; ct status dnat masquerade; }
		}`, u.of("ip", "ip6"), net.JoinHostPort(other, "4789")))
		wo, wa, wb := near.wire(far.node, "eth0"), near.wire(near.pods["a"], "eth0"), near.wire(far.pods["b"], "eth0")
		up, v := near.macIn(near.node, "eth0"), &volley{l: near}
		for _, pair := range [][2]string{{"10.1.0.11", "10.1.0.131"}, {"fd01::b", "fd01::83"}, {nodeAddr4, "10.1.0.131"}} {
			v.try(wo, wb, "a stranger by NodePort as "+pair[0], func(word string) []byte {
				return udpFrame(wo, up, stranger, own, 33333, 30053, string(tunneled("far", pair[0], pair[1], word)))
			})
		}
		sent := uint64(len(v.tries))
		v.held(control{wa, wb, func(w string) []byte {
			return udpFrame(wa, near.hostMAC("a"), "10.1.0.11", "10.1.0.131", 7, controlPort, w)
		}})
		if n := near.drops("tunnel"); n != sent {
			t.Errorf("%d packets are counted as tunnel, want %d", n, sent)
		}
	})
}
