// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"fmt"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
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
