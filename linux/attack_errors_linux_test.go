// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"fmt"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
)

// A pod sends no ICMP errors about the flows of others: it is no router.
func TestAttackErrorsAboutFlowsOfOthers(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		l := newLabWith(t, change)
		for i, n := range []string{"a", "b", "c"} {
			l.pod(n, byte(11+i))
		}
		l.echo(l.outside, 80)
		l.echo(l.pods["c"], 80)
		l.apply(isolate("b", model.Ingress, accept(pods("a"), udp(controlPort))))
		for l.idle() {
		}
		wa, wb, host := l.wire(l.pods["a"], "eth0"), l.wire(l.pods["b"], "eth0"), l.hostMAC("a")
		v := &volley{l: l}
		for _, f := range addressSets {
			for _, to := range []string{f.out, f.c} {
				conn := l.dial("b", to, 80)
				defer conn.Close()
				for _, kind := range errorKinds(f.v6) {
					v.try(wa, wb, fmt.Sprintf("type %d: a quotes the flow of b to %s", kind, to), func(word string) []byte {
						return quotation(wa, host, f.a, f.b, kind, layers.IPProtocolTCP, f.b, to, localPort(conn), 80, word)
					})
				}
			}
			v.held(control{wa, wb, func(w string) []byte { return udpFrame(wa, host, f.a, f.b, 7, controlPort, w) }})
		}
	})
}
