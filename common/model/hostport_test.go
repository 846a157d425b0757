// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"testing"
)

func TestHostPortOverlaps(t *testing.T) {
	at := func(address string) HostPort {
		h := HostPort{Number: 80, Protocol: TCP, Port: 8080}
		if address != "" {
			h.Address = netip.MustParseAddr(address)
		}
		return h
	}
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"", "", true}, {"", "192.0.2.1", true}, {"", "::1", true}, {"0.0.0.0", "192.0.2.1", true}, {"0.0.0.0", "::", false},
		{"::", "2001:db8::1", true}, {"192.0.2.1", "192.0.2.1", true}, {"192.0.2.1", "192.0.2.2", false}, {"127.0.0.1", "::", false},
	} {
		if got := at(c.a).Overlaps(at(c.b)); got != c.want {
			t.Errorf("%q and %q overlap: %t", c.a, c.b, got)
		}
		if got := at(c.b).Overlaps(at(c.a)); got != c.want {
			t.Errorf("%q and %q overlap: %t", c.b, c.a, got)
		}
	}
	for _, c := range []struct {
		pod, socket string
		want        bool
	}{
		{"", "", true}, {"", "0.0.0.0", true}, {"", "192.0.2.1", true}, {"", "127.0.0.53", false}, {"", "::1", false},
		{"0.0.0.0", "127.0.0.1", false}, {"127.0.0.1", "127.0.0.1", true}, {"127.0.0.1", "127.0.0.53", false},
		{"127.0.0.1", "0.0.0.0", true}, {"192.0.2.1", "127.0.0.1", false}, {"192.0.2.1", "::", false}, {"192.0.2.1", "", true},
	} {
		if got := at(c.pod).TakenBy(at(c.socket)); got != c.want {
			t.Errorf("%q is taken by a socket at %q: %t", c.pod, c.socket, got)
		}
	}
	udp := at("")
	udp.Protocol = UDP
	other := at("")
	other.Number = 81
	if at("").Overlaps(udp) || at("").Overlaps(other) {
		t.Error("another protocol or number overlaps")
	}
}
