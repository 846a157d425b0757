// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestQOSDirection checks the answer for each meaning of QOS, and that only the assumed one is not wrong.
func TestQOSDirection(t *testing.T) {
	for want, qos := range map[string][2]bool{"what it sends": {true, false}, "what it receives": {false, true}, "both": {true, true}, "nothing": {}} {
		s := simulate(t, hns.Server2022, hns.Reading{})
		s.qos = qos
		p := newPair(t, s, s)
		before := s.fake.Dump()
		if a, err := p.qosDirection(t.Context()); err != nil || a.Answer != want || a.Wrong != (want != "what it sends") {
			t.Errorf("want %q: %+v, %v", want, a, err)
		}
		if after := s.fake.Dump(); after != before {
			t.Errorf("%s: left behind:\n%s", want, after)
		}
	}
}

// TestQOSRefused checks an HNS that refuses QOS: the answer says so.
func TestQOSRefused(t *testing.T) {
	s := simulate(t, hns.Server2022, hns.Reading{})
	p := newPair(t, s, s)
	s.fake.Before(func(op, _ string) error { // the only call that changes an endpoint
		if op == "ModifyEndpoint" {
			return hns.NewError(op, hns.CodeInvalidPolicy, "no QOS")
		}
		return nil
	})
	if a, err := p.qosDirection(t.Context()); err != nil || a.Answer != "refused (0x803B000D)" || !a.Wrong {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestStream sends a stream by real sockets.
func TestStream(t *testing.T) {
	s := sockets{func(_ uint32, f func() error) error { return f() }}
	loop := netip.MustParseAddr("127.0.0.1")
	if rate, err := s.Stream(t.Context(), pod{ip: loop}, pod{ip: loop}, freePort(t), 200*time.Millisecond); err != nil || rate < 1000 {
		t.Errorf("%.0f bytes/s, %v", rate, err)
	}
}
