// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"fmt"
	"testing"

	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/fastpath"
)

// A policy change of the receiver applies to the next datagram of a flow without answers,
// although the policy of the sender has not changed.
func TestAttackOneWay(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		l := newLabWith(t, change)
		l.pod("a", 11)
		l.pod("b", 12)
		control9 := accept(pods("a"), udp(controlPort))
		l.apply(isolate("b", model.Ingress, accept(pods("a"), udp(9999)), control9))
		for l.idle() {
		}
		wa, wb := l.wire(l.pods["a"], "eth0"), l.wire(l.pods["b"], "eth0")
		host := l.hostMAC("a")
		v := &volley{l: l}
		to := func(f addressSet, port uint16) control {
			return control{wa, wb, func(w string) []byte { return udpFrame(wa, host, f.a, f.b, 7777, port, w) }}
		}
		for _, f := range addressSets {
			v.held(to(f, 9999), to(f, 9999), to(f, controlPort)) // the flows are known
		}
		l.apply(isolate("b", model.Ingress, control9))
		for _, f := range addressSets {
			for i := range 3 {
				v.try(wa, wb, fmt.Sprintf("datagram %d of a known flow from %s", i, f.a), func(word string) []byte {
					return udpFrame(wa, host, f.a, f.b, 7777, 9999, word)
				})
			}
			v.held(to(f, controlPort))
		}
	})
}

// The same holds for datagrams from another node: on the fast path and through the host stacks, by routes and by tunnels.
func TestAttackOneWayBetweenNodes(t *testing.T) {
	t.Parallel()
	for _, mode := range []fabric.Mode{fabric.Routes, fabric.VXLAN} {
		for _, forwarding := range []fastpath.Forwarding{fastpath.Direct, fastpath.Stack} {
			t.Run(fmt.Sprintf("%s/%s", mode, forwarding), func(t *testing.T) {
				n := newNodes(t, func(c *linux.Config) { c.Fabric.Mode, c.Forwarding = mode, forwarding })
				near, far := n[0], n[1]
				near.pod("a", 11)
				far.pod("b", 131)
				control9 := accept(pods("a"), udp(controlPort))
				n.apply(isolate("b", model.Ingress, accept(pods("a"), udp(9999)), control9))
				wa, wb, host := near.wire(near.pods["a"], "eth0"), near.wire(far.pods["b"], "eth0"), near.hostMAC("a")
				v := &volley{l: near}
				send := func(f addressSet, port uint16) func(string) []byte {
					b := map[bool]string{false: "10.1.0.131", true: "fd01::83"}[f.v6]
					return func(w string) []byte { return udpFrame(wa, host, f.a, b, 7777, port, w) }
				}
				known := func() {
					for _, f := range addressSets {
						for _, port := range []uint16{9999, 9999, controlPort} {
							v.held(control{wa, wb, send(f, port)}) // one after the other, so that the flow is known
						}
					}
				}
				n.straight(forwarding == fastpath.Direct, known)
				n.apply(isolate("b", model.Ingress, control9))
				for _, f := range addressSets {
					for i := range 3 {
						v.try(wa, wb, fmt.Sprintf("datagram %d of a known flow from %s", i, f.a), send(f, 9999))
					}
					v.held(control{wa, wb, send(f, controlPort)})
				}
			})
		}
	}
}
