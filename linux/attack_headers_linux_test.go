// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
)

// authenticated returns an IPv6 packet with an authentication header before the transport header. Connection tracking reads what
// follows that header.
func authenticated(frame []byte) []byte {
	const ip, header = 14, 40
	out := append([]byte(nil), frame[:ip+header]...)
	ah := make([]byte, 24)
	ah[0], ah[1] = frame[ip+6], 4 // in units of four bytes, without the first two
	out[ip+6] = byte(layers.IPProtocolAH)
	length := len(frame) - ip - header + len(ah)
	out[ip+4], out[ip+5] = byte(length>>8), byte(length)
	return append(append(out, ah...), frame[ip+header:]...)
}

// A pod whose policy allows the address of a Service, but not its backend any more, does not continue a flow by packets with an
// authentication header, which connection tracking translates like those without.
func TestAttackAuthenticationHeader(t *testing.T) {
	t.Parallel()
	onBothHooks(t, func(t *testing.T, change func(*linux.Config)) {
		l := newServiceAttackLab(t, change)
		set, f := addressSets[1], families[1]
		services := []model.Rule{accept(block("fd96::/64")), accept(pods("c")), accept(pods("b"), udp(controlPort))}
		l.apply(isolate("a", model.Egress, append(services[:3:3], accept(pods("b"), udp(8080)))...))
		wa, wb, wc := l.wire(l.pods["a"], "eth0"), l.wire(l.pods["b"], "eth0"), l.wire(l.pods["c"], "eth0")
		host := l.hostMAC("a")
		request := func(w string) []byte { return udpFrame(wa, host, set.a, f.service, 9, 80, w) }
		if wa.send(request("request")); !wb.await("request") {
			t.Fatal("a request to the Service does not arrive")
		}
		l.apply(isolate("a", model.Egress, services...))
		v := &volley{l: l}
		v.try(wa, wb, "UDP from a to the Service", request)
		v.try(wa, wb, "UDP from a to the Service, with an authentication header", func(w string) []byte { return authenticated(request(w)) })
		v.held(control{wa, wb, func(w string) []byte { return udpFrame(wa, host, set.a, set.b, 7, controlPort, w) }},
			control{wa, wc, func(w string) []byte { return authenticated(udpFrame(wa, host, set.a, set.c, 7, controlPort, w)) }})
	})
}
