// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
)

// A pod whose policy allows the address of a Service, but not its backend, cannot send errors to the Service: neither about its
// own flow, after policy denied it, nor about that of another pod. Connection tracking would send them on to the backend.
func TestAttackErrorsToADeniedBackend(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		l := newServiceAttackLab(t, change)
		l.passInvalid()
		services := []model.Rule{accept(block("10.96.0.0/16")), accept(block("fd96::/64")), accept(pods("b"), udp(controlPort))}
		ofC := isolate("c", model.Egress, services...)
		v := &volley{l: l}
		for i, f := range families {
			l.apply(ofC, isolate("a", model.Egress, append(services[:3:3], accept(pods("b"), tcp(8080)))...))
			wa, wb, wc, set := l.wire(l.pods["a"], "eth0"), l.wire(l.pods["b"], "eth0"), l.wire(l.pods["c"], "eth0"), addressSets[i]
			hosts := [2]net.HardwareAddr{l.hostMAC("a"), l.hostMAC("b")}
			flow := l.connectThrough("a by Service to b", l.pods["a"], wa, wb, hosts, netip.AddrPortFrom(netip.MustParseAddr(f.service), 80))
			kinds := errorKinds(set.v6)
			for _, kind := range kinds {
				word := fmt.Sprintf("true-%d-%d-", i, kind)
				if wa.send(flow.error(0, kind, word)); !wb.await(word) {
					t.Errorf("an error of type %d about the flow does not arrive", kind)
				}
			}
			odd := []byte{4, 5} // which connection tracking takes for errors, too
			if set.v6 {
				odd = []byte{0, 100, 127}
			}
			l.apply(ofC, isolate("a", model.Egress, services...))
			for _, kind := range append(kinds, odd...) {
				v.try(wa, wb, fmt.Sprintf("type %d: a quotes its flow, after policy denied the backend", kind), func(word string) []byte { return flow.error(0, kind, word) })
				v.try(wc, wb, fmt.Sprintf("type %d: c quotes the flow of a", kind), func(word string) []byte {
					return flow.errorFrom(wc, l.hostMAC("c"), netip.MustParseAddr(set.c), 0, kind, word)
				})
			}
			v.held(control{wa, wb, func(w string) []byte { return udpFrame(wa, hosts[0], set.a, set.b, 7, controlPort, w) }},
				control{wc, wb, func(w string) []byte { return udpFrame(wc, l.hostMAC("c"), set.c, set.b, 7, controlPort, w) }})
		}
	})
}
