// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
	"time"
)

func TestTarget(t *testing.T) {
	for _, c := range []struct {
		args     []string
		to       string
		patience time.Duration
		ok       bool
	}{
		{[]string{"connect", "--timeout=3s", "--protocol=sctp", "10.0.0.1:9003"}, "10.0.0.1:9003", 3 * time.Second, true},
		{[]string{"connect", "[fd00::1]:9003", "--protocol=sctp"}, "[fd00::1]:9003", time.Second, true},
		{[]string{"connect", "--timeout=3s", "--protocol=tcp", "10.0.0.1:80"}, "10.0.0.1:80", 3 * time.Second, false},
		{[]string{"netexec", "--protocol=sctp"}, "", 0, false},
		{nil, "", 0, false},
	} {
		to, patience, ok := sctpTarget(c.args)
		if to != c.to || patience != c.patience || ok != c.ok {
			t.Errorf("%q: %s %s %t, want %s %s %t", c.args, to, patience, ok, c.to, c.patience, c.ok)
		}
	}
}

func TestPorts(t *testing.T) {
	ports, err := sctpPorts([]string{"A=b", "SERVE_SCTP_PORT_9003=foo", "SERVE_PORT_80=foo", "SERVE_SCTP_PORT_9005="})
	if err != nil || !slices.Equal(ports, []uint16{9003, 9005}) {
		t.Errorf("ports %d, %v", ports, err)
	}
	for _, bad := range []string{"SERVE_SCTP_PORT_=x", "SERVE_SCTP_PORT_0=x", "SERVE_SCTP_PORT_65536=x", "SERVE_SCTP_PORT_web=x"} {
		if ports, err := sctpPorts([]string{bad}); err == nil {
			t.Errorf("%s: ports %d, want an error", bad, ports)
		}
	}
}
